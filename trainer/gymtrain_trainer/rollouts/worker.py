"""The rollout worker: NeMo Gym's servers as a training framework takes samples from them (`framework.Rollouts`)."""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import assert_never

from gymtrain_trainer.data.order import Place
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
from gymtrain_trainer.rollouts.buffer import GroupBuffer, UsedGroup
from gymtrain_trainer.rollouts.evaluation import EvaluationRun
from gymtrain_trainer.rollouts.group import Groups, Lost
from gymtrain_trainer.rollouts.pace import Flow, Lead, failure_pause, is_late, may_start, quick
from gymtrain_trainer.rollouts.parts import WorkerParts, WorkerSettings
from gymtrain_trainer.rollouts.positions import REDRAWS, Draw, Positions

log = logging.getLogger(__name__)

_JOIN_SECONDS = 10.0
_MEASURED_GROUPS = 64  # the last ones that ended


@dataclass
class _Running:
    """A group that runs."""

    agent: str
    version: int  # when it began
    began: float
    late: bool = False  # it has given up its place


class RolloutWorker:
    """Draws tasks, runs their groups, and queues the samples."""

    def __init__(self, settings: WorkerSettings, tasks: Tasks, parts: WorkerParts) -> None:
        """Starts nothing yet."""
        self._settings = settings
        self._tasks = tasks
        self._parts = parts
        self._report = parts.report
        self._version = 0
        self.buffer = GroupBuffer(lambda: self._version)
        self.metrics = parts.report.metrics
        self._positions = Positions(settings.start)
        self._running: dict[asyncio.Task[None], _Running] = {}
        self._durations: deque[float] = deque(maxlen=_MEASURED_GROUPS)
        self._groups: Groups | None = None
        self._rollouts = 0  # that ran when they were counted last
        self._lead = Lead()
        self._waiting_since: float | None = None  # trainer found the buffer empty
        self._loop: asyncio.AbstractEventLoop | None = None
        self._announcer: Announcer | None = None
        self._evaluation: EvaluationRun | None = None  # the last that was wanted
        self._evaluating: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        self._fatal: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="rollouts", daemon=True)

    def prepare(self) -> None:
        """Starts what takes some time to be ready; once, any time before `start`."""
        if self._parts.prepare is not None:
            self._parts.prepare()

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
        self.weights_arrived()

    def weights_arrived(self) -> None:
        """vLLM holds a newer version: more groups may start. From any thread."""
        self._wake_up()

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
        if self.evaluates:  # it has a deadline of its own, and may hold the training's rollouts up
            self._waiting_since = now
            return
        since = self._waiting_since = max(self._waiting_since or now, self._report.last_usable)
        if now - since > self._settings.stall_timeout_seconds:
            raise RolloutsStalledError(
                f"no usable rollout for {now - since:.0f} s (rollout.stallTimeoutSeconds is "
                f"{self._settings.stall_timeout_seconds:g}). Last error: {self._report.last_error}"
            )

    # --- evaluations, called from the trainer's thread ---

    def evaluate(self, evaluation: EvaluationRun) -> None:
        """Evaluates once vLLM holds the version. One at a time; what it came to stands in its `end`."""
        assert not self.evaluates
        self._evaluation = evaluation
        self._wake_up()

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation is wanted or runs. From any thread."""
        evaluation = self._evaluation
        return evaluation is not None and not evaluation.end.done()

    # --- for checkpoints, metrics and the watchdog ---

    def place(self) -> Place:
        """What is done of the data; a later attempt resumes there."""
        return self._positions.place()

    def use(self) -> list[UsedGroup]:
        """The groups of the step that has ended; once a step, in the trainer's thread."""
        used = self.buffer.use()
        self._lead = self._lead.after(self.buffer.wait, len(used), self._settings.bounds)
        self._positions.done([one.group.id for one in used])
        return used

    def in_flight(self) -> InFlight:
        """The groups that run now."""
        return self._positions.in_flight()

    @property
    def dropped(self) -> dict[DropReason, int]:
        """Groups dropped so far, by reason."""
        return self._report.dropped()

    # --- GroupEvents, called from the worker's own thread ---

    def rollout_failed(self, error: str) -> None:
        """One try of a rollout failed."""
        self._report.rollout_failed(error)

    def rollout_lost(self, agent: str, lost: Lost) -> None:
        """A rollout of the agent failed for good."""
        self._report.rollout_lost(agent, lost)

    def rollouts_running(self, count: int) -> None:
        """So many rollouts run now; wakes the worker once there is room for another group."""
        bounds, before = self._settings.bounds, self._rollouts
        self._rollouts = count
        if count <= bounds.max_concurrent - bounds.group_size < before:
            self._wake.set()

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
            groups = self._groups = await stack.enter_async_context(self._parts.groups(self))
            if self._parts.announcer is not None:
                self._announcer = await stack.enter_async_context(self._parts.announcer())
                self._announcer.drawn(self._positions.upcoming(self._announcer.rows_ahead))
            try:
                while not self._stopping and self._fatal is None:
                    self._wake.clear()
                    groups.update_model_version(self._held())
                    self._begin_evaluation(groups)
                    while self._may_start():
                        await asyncio.sleep(failure_pause(self._report.unusable))
                        self._start_group(groups)
                    await self._wake.wait()
            finally:
                running = list(self._running)
                if self._evaluating is not None:
                    running.append(self._evaluating)
                for group in running:
                    group.cancel()
                await asyncio.gather(*running, return_exceptions=True)
        if self._fatal is not None:
            raise self._fatal

    def _held(self) -> int:
        """The version that groups begin with: the trainer's, once vLLM has it."""
        return min(self._version, self._parts.held()) if self._parts.held is not None else self._version

    def _may_start(self) -> bool:
        evaluation = self._evaluation
        if self._stopping or (evaluation and not evaluation.end.done() and not evaluation.settings.while_training):
            return False
        return may_start(self._settings.bounds, self._flow(), self._lead)

    def _begin_evaluation(self, groups: Groups) -> None:
        evaluation, running = self._evaluation, self._evaluating
        if evaluation is None or evaluation.end.done() or self._held() < evaluation.version:
            return
        if running is None or running.done():
            self._evaluating = asyncio.create_task(evaluation.run(groups))
            self._evaluating.add_done_callback(lambda _: self._wake.set())

    def _flow(self) -> Flow:
        """What is under way now. The account may be of a moment ago: the next change looks again."""
        assert self._groups is not None
        version, stock = self._held(), self.buffer.stock()
        return Flow(
            version=version,
            running=len(self._running),
            running_rollouts=self._groups.running,
            late=self._late(version),
            waiting=stock.waiting,
            taken=stock.taken,
            used=stock.used,
            steps=stock.steps,
        )

    def _late(self, version: int) -> int:
        now, quick_seconds = time.monotonic(), quick(self._durations)
        late = 0
        for group in self._running.values():
            if is_late(self._settings.bounds, version - group.version, now - group.began, quick_seconds):
                late += 1
                if not group.late:
                    group.late = True
                    self._report.group_late(group.agent)
        return late

    def _start_group(self, groups: Groups) -> None:
        position = self._positions.draw()
        task = self._tasks.at(position)
        draw = self._positions.begin(position, task.agent)
        group = asyncio.create_task(self._group(task, groups))
        self._running[group] = _Running(task.agent, self._held(), time.monotonic())
        group.add_done_callback(lambda done: self._group_ended(draw, done))
        if self._announcer is not None:
            self._announcer.drawn(self._positions.upcoming(self._announcer.rows_ahead))

    def _group_ended(self, draw: Draw, done: asyncio.Task[None]) -> None:
        """Called some time after the group has ended: its position may be drawn again, and run, by then."""
        self._running.pop(done, None)
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or error is not None:
            self._positions.again(draw.position)  # a checkpoint may still be written: a later attempt begins with it
        self._fatal = self._fatal or error
        self._positions.end(draw)
        self._wake.set()

    async def _group(self, task: Task, groups: Groups) -> None:
        try:
            groups.update_model_version(self._held())
            group = await groups.run(task)
        except GroupDroppedError as error:
            self._report.group_dropped(task, error)
            match error.reason:
                case DropReason.FAILED | DropReason.TOO_LONG | DropReason.EQUAL_REWARDS:
                    self._positions.done([task.position])  # the next row takes its place
                case DropReason.STALE | DropReason.NO_LEDGER_ENTRY | DropReason.OTHER_TEMPERATURE:
                    if not self._positions.again_unless_hopeless(task.position):
                        self._positions.done([task.position])
                        why = f"drawn {REDRAWS + 1} times; the last: {error}"
                        self._report.row_given_up(task.position, error.reason, why)
                case DropReason.FOREIGN_WEIGHTS:
                    self._positions.again(task.position)
                case _:
                    assert_never(error.reason)
            return
        self._waiting_since = None
        self._durations.append(group.seconds)
        self._report.group_usable(task, group)
        self.buffer.put(group.samples)
