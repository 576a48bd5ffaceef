"""The rollout worker: satisfies TRL's `RolloutWorkerProtocol` with NeMo Gym agents as the source of rollouts."""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gymtrain_trainer.data.rows import Task, Tasks
from gymtrain_trainer.errors import RolloutError, RolloutsStalledError, TrainerError, WorkerDiedError
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.answer import Answer, prompt_text
from gymtrain_trainer.rollouts.buffer import SampleBuffer
from gymtrain_trainer.rollouts.client import RolloutClient
from gymtrain_trainer.rollouts.guard import WeightGuard
from gymtrain_trainer.rollouts.pace import bound, failure_pause, may_start

log = logging.getLogger(__name__)

_JOIN_SECONDS = 10.0
type SampleMaker = Callable[[Sequence[Answer], Task, int], list[Any]]


@dataclass(frozen=True)
class WorkerSettings:
    """Numbers of the worker."""

    num_generations: int
    ahead: int  # pace.samples_ahead
    max_concurrent: int
    max_staleness: int
    stall_timeout_seconds: float
    start_position: int = 0


class RolloutWorker:
    """Draws tasks, runs their groups, and queues the samples."""

    def __init__(
        self,
        settings: WorkerSettings,
        tasks: Tasks,
        client: Callable[[Callable[[RolloutError], None]], RolloutClient],
        guard: Callable[[], WeightGuard],
        make_samples: SampleMaker,
        board: ProgressBoard,
    ) -> None:
        """`client` and `guard` are made inside the worker's event loop; `make_samples(answers, task, version)`."""
        self._settings = settings
        self._tasks = tasks
        self._make_client = client
        self._make_guard = guard
        self._make_samples = make_samples
        self._board = board
        self._version = 0
        self.rollout_buffer = SampleBuffer(settings.max_staleness, lambda: self._version)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self.discarded_groups = 0  # sampled from other weights, drawn again
        self._next_position = settings.start_position
        self._again: deque[int] = deque()
        self._in_flight: dict[int, asyncio.Task[None]] = {}  # by position
        self._failed_groups = 0  # since the last usable one
        self._last_error = "no rollout has finished yet"
        self._said = False  # the board's message is about trouble of ours
        self._last_usable = time.monotonic()
        self._waiting_since: float | None = None  # trainer found the buffer empty
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        self._fatal: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="rollouts", daemon=True)

    # --- TRL's protocol, called from the trainer's thread ---

    def start(self) -> None:
        """Begins to produce rollouts."""
        self._last_usable = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Cancels what is in flight and ends the thread."""
        self._stopping = True
        self._wake_up()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def update_model_version(self, model_version: int) -> None:
        """The trainer's version from now on."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """TRL calls this while it waits on an empty buffer.

        Raises:
            RolloutsStalledError: no usable group for `stall_timeout_seconds` of waiting.
            WorkerDiedError: the thread ended; a TrainerError of the thread is raised as it is.
        """
        if self._fatal is not None:
            if isinstance(self._fatal, TrainerError):
                raise self._fatal
            raise WorkerDiedError(f"the rollout worker died: {self._fatal!r}") from self._fatal
        now = time.monotonic()
        since = self._waiting_since = max(self._waiting_since or now, self._last_usable)
        if now - since > self._settings.stall_timeout_seconds:
            raise RolloutsStalledError(
                f"no usable rollout for {now - since:.0f} s (rollout.stallTimeoutSeconds is "
                f"{self._settings.stall_timeout_seconds:g}). Last error: {self._last_error}"
            )

    # --- for checkpoints ---

    def resume_position(self) -> int:
        """First position whose samples weren't all used: where a later attempt goes on."""
        open_positions = [
            *list(self._in_flight),
            *list(self._again),
            *self.rollout_buffer.waiting_groups(),
            *self.rollout_buffer.taken_groups(),
        ]
        return min(open_positions, default=self._next_position)

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
        self.rollout_buffer.on_change = self._wake_up
        guard = self._make_guard()
        async with self._make_client(self._rollout_failed) as client:
            try:
                while not self._stopping and self._fatal is None:
                    self._wake.clear()
                    while self._may_start():
                        await asyncio.sleep(failure_pause(self._failed_groups))
                        self._start_group(client, guard)
                    await self._wake.wait()
            finally:
                for group in self._in_flight.values():
                    group.cancel()
                await asyncio.gather(*self._in_flight.values(), return_exceptions=True)
        if self._fatal is not None:
            raise self._fatal

    def _may_start(self) -> bool:
        return not self._stopping and may_start(
            in_flight=len(self._in_flight) * self._settings.num_generations,
            waiting=self.rollout_buffer.waiting(),
            num_generations=self._settings.num_generations,
            ahead=bound(
                self._settings.ahead,
                starving=self.rollout_buffer.starving,
                version=self._version,
                max_staleness=self._settings.max_staleness,
            ),
            max_concurrent=self._settings.max_concurrent,
        )

    def _start_group(self, client: RolloutClient, guard: WeightGuard) -> None:
        if self._again:
            position = self._again.popleft()
        else:
            position, self._next_position = self._next_position, self._next_position + 1
        group = asyncio.create_task(self._group(self._tasks.at(position), client, guard))
        self._in_flight[position] = group
        group.add_done_callback(lambda done: self._group_ended(position, done))

    def _group_ended(self, position: int, done: asyncio.Task[None]) -> None:
        del self._in_flight[position]
        if not done.cancelled() and (error := done.exception()) is not None:
            self._fatal = self._fatal or error
        self._wake.set()

    async def _group(self, task: Task, client: RolloutClient, guard: WeightGuard) -> None:
        """One group from first request to queued samples."""
        began, version = time.monotonic(), self._version
        before = await guard.before()
        try:
            answers = await self._rollouts(task, client)
            if reason := await guard.reason_to_discard(before):
                self._group_discarded(task, reason)
                return
            samples = self._make_samples(answers, task, version)
        except RolloutError as error:
            self._group_failed(error)
            return
        self._group_usable(task, answers, version)
        self.metrics_queue.put(
            {
                "rollout/group_s": time.monotonic() - began,
                "rollout/completion_tokens_mean": sum(a.generated for a in answers) / len(answers),
                "rollout/turns_mean": sum(len(a.turns) for a in answers) / len(answers),
                "rollout/rows_per_rollout": len(samples) / len(answers),
            }
        )
        self.rollout_buffer.put_group(samples)

    async def _rollouts(self, task: Task, client: RolloutClient) -> list[Answer]:
        """All rollouts of a group. The first that fails for good ends the others, and its RolloutError is raised."""
        running = [asyncio.create_task(client.run(task.url, task.row)) for _ in range(self._settings.num_generations)]
        try:
            return await asyncio.gather(*running)
        finally:
            for rollout in running:
                rollout.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _rollout_failed(self, error: RolloutError) -> None:
        self._last_error = str(error)
        self._board.count("failed_rollouts")

    def _group_failed(self, error: BaseException) -> None:
        """Dropped, never rewarded with 0."""
        self._failed_groups += 1
        self._last_error = str(error)
        self._board.count("dropped_groups")
        self.metrics_queue.put({"rollout/dropped_groups_total": 1.0})
        log.warning("group dropped, a rollout failed for good: %s", error)
        if self._failed_groups == 1:
            self._board.update(rollouts_failing_since=time.time())
        self._say(f"rollouts fail: {error}")

    def _group_discarded(self, task: Task, reason: str) -> None:
        self.discarded_groups += 1
        self._last_error = reason
        self._again.append(task.position)
        self._board.count("dropped_groups")
        self.metrics_queue.put({"rollout/discarded_groups_total": 1.0})
        log.warning("group discarded and drawn again: %s", reason)
        self._say(f"rollouts are discarded: {reason}")

    def _say(self, trouble: str) -> None:
        self._said = True
        self._board.update(message=trouble)

    def _group_usable(self, task: Task, answers: Sequence[Answer], version: int) -> None:
        self._last_usable = time.monotonic()
        self._waiting_since = None
        self._failed_groups = 0
        if self._said:
            self._said = False
            self._board.update(rollouts_failing_since=None, message="")
        self._board.count("rollouts", len(answers))
        for answer in answers[:2]:
            self._board.add_sample(
                {
                    "position": task.position,
                    "agent": task.agent,
                    "prompt": prompt_text(task.row),
                    "completion": answer.text,
                    "reward": answer.reward,
                    "tokens": answer.generated,
                    "turns": len(answer.turns),
                    "model_version": version,
                    "time": time.time(),
                }
            )
