"""The rollout worker: NeMo Gym's servers as a training framework takes samples from them (`framework.Rollouts`)."""

import asyncio
import contextlib
import logging
import threading
import time
from contextlib import AsyncExitStack

from gymtrain_trainer.data.rows import Task, Tasks
from gymtrain_trainer.errors import (
    DropReason,
    GroupDroppedError,
    RolloutsStalledError,
    TrainerError,
    WorkerDiedError,
)
from gymtrain_trainer.progress import InFlight
from gymtrain_trainer.rollouts.announce import Announcer
from gymtrain_trainer.rollouts.buffer import SampleBuffer
from gymtrain_trainer.rollouts.group import GroupRunner
from gymtrain_trainer.rollouts.pace import bound, failure_pause, may_start
from gymtrain_trainer.rollouts.parts import WorkerParts, WorkerSettings
from gymtrain_trainer.rollouts.positions import REDRAWS, Draw, Positions

log = logging.getLogger(__name__)

_JOIN_SECONDS = 10.0


class RolloutWorker:
    """Draws tasks, runs their groups, and queues the samples."""

    def __init__(self, settings: WorkerSettings, tasks: Tasks, parts: WorkerParts) -> None:
        """Starts nothing yet."""
        self._settings = settings
        self._tasks = tasks
        self._parts = parts
        self._report = parts.report
        self._version = 0
        self.buffer = SampleBuffer(settings.rules.max_staleness, lambda: self._version)
        self.buffer.on_stale = self._grew_stale
        self.metrics = parts.report.metrics
        self._positions = Positions(settings.start_position)
        self._running: set[asyncio.Task[None]] = set()
        self._waiting_since: float | None = None  # trainer found the buffer empty
        self._loop: asyncio.AbstractEventLoop | None = None
        self._announcer: Announcer | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        self._fatal: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="rollouts", daemon=True)

    # --- framework.Rollouts, called from the trainer's thread ---

    def start(self) -> None:
        """Begins to produce rollouts."""
        self._report.last_usable = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Cancels running groups and ends the thread."""
        self._stopping = True
        self._wake_up()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def update_model_version(self, model_version: int) -> None:
        """The trainer's version from now on."""
        self._version = model_version

    def check_health(self) -> None:
        """Called while the trainer waits on an empty buffer.

        Raises:
            RolloutsStalledError: no usable group for `stall_timeout_seconds` of waiting.
            WorkerDiedError: the thread ended; a TrainerError of the thread is raised as it is.
        """
        if self._fatal is not None:
            if isinstance(self._fatal, TrainerError):
                raise self._fatal
            raise WorkerDiedError(f"the rollout worker died: {self._fatal!r}") from self._fatal
        now = time.monotonic()
        since = self._waiting_since = max(self._waiting_since or now, self._report.last_usable)
        if now - since > self._settings.stall_timeout_seconds:
            raise RolloutsStalledError(
                f"no usable rollout for {now - since:.0f} s (rollout.stallTimeoutSeconds is "
                f"{self._settings.stall_timeout_seconds:g}). Last error: {self._report.last_error}"
            )

    # --- for checkpoints, metrics and the watchdog ---

    def resume_position(self) -> int:
        """First position whose samples weren't all used; a later attempt resumes there."""
        return self._positions.first_open([*self.buffer.waiting_groups(), *self.buffer.taken_groups()])

    def in_flight(self) -> InFlight:
        """The groups that run now."""
        return self._positions.in_flight()

    @property
    def dropped(self) -> dict[DropReason, int]:
        """Groups dropped so far, by reason."""
        return self._report.dropped()

    # --- the worker's own thread ---

    def _wake_up(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop closed meanwhile: nobody to wake
                self._loop.call_soon_threadsafe(self._wake.set)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._fatal = error
            log.exception("the rollout worker died")

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.buffer.on_change = self._wake_up
        async with AsyncExitStack() as stack:
            source = await stack.enter_async_context(self._parts.source(self._report.rollout_failed))
            ledger = await stack.enter_async_context(self._parts.ledger()) if self._parts.ledger else None
            if self._parts.announcer is not None:
                self._announcer = await stack.enter_async_context(self._parts.announcer())
                self._announcer.drawn(self._positions.upcoming(self._announcer.rows_ahead))
            runner = GroupRunner(
                self._settings.rules,
                source,
                self._parts.guard(),
                ledger,
                self._parts.make_samples,
                lambda: self._version,
            )
            try:
                while not self._stopping and self._fatal is None:
                    self._wake.clear()
                    while self._may_start():
                        await asyncio.sleep(failure_pause(self._report.unusable))
                        self._start_group(runner)
                    await self._wake.wait()
            finally:
                running = list(self._running)
                for group in running:
                    group.cancel()
                await asyncio.gather(*running, return_exceptions=True)
        if self._fatal is not None:
            raise self._fatal

    def _may_start(self) -> bool:
        group_size = self._settings.rules.group_size
        return not self._stopping and may_start(
            in_flight=len(self._running) * group_size,
            waiting=self.buffer.waiting(),
            group_size=group_size,
            ahead=bound(
                self._settings.ahead,
                starving=self.buffer.starving,
                version=self._version,
                max_staleness=self._settings.rules.max_staleness,
            ),
            max_concurrent=self._settings.max_concurrent,
        )

    def _start_group(self, runner: GroupRunner) -> None:
        position = self._positions.draw()
        task = self._tasks.at(position)
        draw = self._positions.begin(position, task.agent)
        group = asyncio.create_task(self._group(task, runner))
        self._running.add(group)
        group.add_done_callback(lambda done: self._group_ended(draw, done))
        if self._announcer is not None:
            self._announcer.drawn(self._positions.upcoming(self._announcer.rows_ahead))

    def _group_ended(self, draw: Draw, done: asyncio.Task[None]) -> None:
        """Called some time after the group has ended: its position may be drawn again, and run, by then."""
        self._running.discard(done)
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or error is not None:
            self._positions.again(draw.position)  # a checkpoint may still be written: a later attempt begins with it
        self._fatal = self._fatal or error
        self._positions.end(draw)
        self._wake.set()

    async def _group(self, task: Task, runner: GroupRunner) -> None:
        try:
            group = await runner.run(task)
        except GroupDroppedError as error:
            self._report.group_dropped(task.agent, error)
            match error.reason:
                case DropReason.FAILED:
                    pass  # it would fail again: the next row takes its place
                case DropReason.STALE | DropReason.NO_LEDGER_ENTRY:
                    self._again_or_never(task.position, error.reason, str(error))
                case DropReason.FOREIGN_WEIGHTS:
                    self._positions.again(task.position)
            return
        self._waiting_since = None
        self._report.group_usable(group)
        self.buffer.put_group(group.samples)

    def _grew_stale(self, position: int, staleness: int) -> None:
        """In the trainer's thread: a waiting group is too old."""
        self._report.group_grew_stale(staleness)
        self._again_or_never(position, DropReason.STALE, f"it was {staleness} weight versions old")

    def _again_or_never(self, position: int, reason: DropReason, why: str) -> None:
        if not self._positions.again_unless_hopeless(position):
            self._report.row_given_up(position, reason, f"drawn {REDRAWS + 1} times; the last: {why}")
