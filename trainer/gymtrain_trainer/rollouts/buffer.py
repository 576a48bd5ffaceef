"""The queue between rollout worker and trainer, and the account of what the trainer took from it.

TRL takes samples one by one, skips the stale ones and hands the rest to its batcher in the same order. Keeping that
order here is what makes "mean reward of the samples used in step k" exact: TRL's own `reward` metric is taken when a
batch is fetched, one batch ahead of the step that uses it.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Taken:
    """A sample that the trainer accepted."""

    group_id: int
    reward: float
    reward_deviation: float
    staleness: int
    tokens: int  # trained ones
    version: int = 0  # model version of the weights that it was sampled from


class SampleBuffer(queue.Queue[Any]):
    """A `queue.Queue` of TRL samples that notes what is taken. Unbounded: the worker bounds what it starts."""

    def __init__(self, max_staleness: int, version: Callable[[], int]) -> None:
        """`version`: the trainer's model version now; the same rule as TRL's decides what is stale."""
        super().__init__()
        self._max_staleness = max_staleness
        self._version = version
        self._account = threading.Lock()
        self._taken: deque[Taken] = deque()
        self._left: dict[int, int] = {}  # samples of each group that nobody took yet
        self.stale = 0  # samples that TRL skipped
        self.starving = False  # the trainer waits and there is nothing
        self.on_change: Callable[[], None] | None = None  # a sample was taken, or the trainer began to starve
        self.while_waiting: Callable[[], AbstractContextManager[Any]] = nullcontext  # around each blocking get

    def put_group(self, samples: list[Any]) -> None:
        """Queues all samples of one group."""
        with self._account:
            self._left[samples[0].group_id] = len(samples)
        for sample in samples:
            self.put(sample)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As `queue.Queue.get`."""
        self.starving = not self.qsize()
        if self.starving and self.on_change is not None:
            self.on_change()
        try:
            with self.while_waiting():
                sample = super().get(block, timeout)
        finally:
            self.starving = False
        staleness = self._version() - sample.model_version
        with self._account:
            self._left[sample.group_id] -= 1
            if not self._left[sample.group_id]:
                del self._left[sample.group_id]
            if staleness > self._max_staleness:
                self.stale += 1
            else:
                self._taken.append(
                    Taken(
                        sample.group_id,
                        sample.metrics["reward"],
                        sample.metrics["reward_std"],
                        staleness,
                        int(sample.completion_mask.sum()),
                        sample.model_version,
                    )
                )
        if self.on_change is not None:
            self.on_change()
        return sample

    def waiting(self) -> int:
        """Samples that nobody took yet."""
        return self.qsize()

    def waiting_groups(self) -> list[int]:
        """Groups with samples that nobody took yet."""
        with self._account:
            return list(self._left)

    def use(self, count: int) -> list[Taken]:
        """The next `count` samples that the trainer used: call it once a step, with the samples of that step."""
        with self._account:
            return [self._taken.popleft() for _ in range(min(count, len(self._taken)))]

    def taken_groups(self) -> list[int]:
        """Groups of samples that were taken but not used in a step yet."""
        with self._account:
            return list({taken.group_id for taken in self._taken})
