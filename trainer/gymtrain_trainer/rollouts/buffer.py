"""The queue between rollout worker and trainer, and the account of what the trainer took from it.

The trainer takes samples one by one and trains on them in that order. Keeping it here is what makes "mean reward of the
samples used in step k" exact: a framework's own account may be taken when a batch is fetched, as TRL's `reward` is, one
batch ahead of the step that uses it.

Groups that grew stale while they waited never reach the trainer: they are dropped whole and drawn again, so that no
group is trained in part. (A group of which a part was taken before the weights changed goes on as far as maxStaleness
allows.)
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from gymtrain_trainer.framework import TrainingSample


@dataclass(frozen=True)
class Taken:
    """A sample that the trainer accepted."""

    group_id: int
    reward: float
    reward_deviation: float
    staleness: int
    tokens: int  # trained ones
    version: int = 0  # model version of the weights that it was sampled from
    constrained: bool = False  # a grammar held a turn of it


@dataclass
class _Waiting:
    """A group with samples that were not taken yet."""

    left: int
    oldest: int  # version
    opened: bool = False  # a part was taken


class SampleBuffer(queue.Queue[TrainingSample]):
    """A `queue.Queue` of samples that notes what is taken. Unbounded: the worker bounds what it starts."""

    def __init__(self, max_staleness: int, version: Callable[[], int]) -> None:
        """`version`: the trainer's model version now. TRL, which looks again, has the same rule for what is stale."""
        super().__init__()
        self._max_staleness = max_staleness
        self._version = version
        self._account = threading.Lock()
        self._taken: deque[Taken] = deque()
        self._groups: dict[int, _Waiting] = {}
        self.stale = 0  # samples that were dropped
        self.starving = False  # the trainer waits and there is nothing
        self.on_change: Callable[[], None] | None = None  # a sample was taken, or the trainer began to starve
        self.on_stale: Callable[[int, int], None] | None = None  # group and its staleness, once a dropped group
        self.on_taken: Callable[[TrainingSample], None] | None = None  # each accepted one, in the trainer's thread
        self.while_waiting: Callable[[], AbstractContextManager[Any]] = nullcontext  # around each blocking get

    def put_group(self, samples: Sequence[TrainingSample]) -> None:
        """Queues all samples of one group."""
        with self._account:
            oldest = min(sample.version for sample in samples)
            self._groups[samples[0].group_id] = _Waiting(len(samples), oldest)
        for sample in samples:
            self.put(sample)

    def get(self, block: bool = True, timeout: float | None = None) -> TrainingSample:
        """As `queue.Queue.get`: the next sample that isn't stale."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            sample = self._next(block, None if end is None else max(0.0, end - time.monotonic()))
            if self._accept(sample):
                break
        if self.on_taken is not None:
            self.on_taken(sample)
        if self.on_change is not None:
            self.on_change()
        return sample

    def _next(self, block: bool, timeout: float | None) -> TrainingSample:
        self.starving = not self.qsize()
        if self.starving and self.on_change is not None:
            self.on_change()
        try:
            with self.while_waiting():
                return super().get(block, timeout)
        finally:
            self.starving = False

    def _accept(self, sample: TrainingSample) -> bool:
        """Notes the sample as taken, or as dropped where it is stale."""
        now = self._version()
        with self._account:
            group = self._groups[sample.group_id]
            group.left -= 1
            if not group.left:
                del self._groups[sample.group_id]
            staleness = now - sample.version
            if (staleness if group.opened else now - group.oldest) > self._max_staleness:
                self.stale += 1
                dropped = not group.opened and not group.left
            else:
                group.opened, dropped = True, False
                self._taken.append(
                    Taken(
                        sample.group_id,
                        sample.reward,
                        sample.reward_deviation,
                        staleness,
                        sample.trained_tokens,
                        sample.version,
                        sample.constrained,
                    )
                )
                return True
        if dropped and self.on_stale is not None:
            self.on_stale(sample.group_id, now - group.oldest)
        return False

    def waiting(self) -> int:
        """Samples that were not taken yet."""
        return self.qsize()

    def waiting_groups(self) -> list[int]:
        """Groups with samples that were not taken yet."""
        with self._account:
            return list(self._groups)

    def use(self, count: int) -> list[Taken]:
        """The next `count` samples that the trainer used: call it once a step, with the samples of that step."""
        with self._account:
            return [self._taken.popleft() for _ in range(min(count, len(self._taken)))]

    def taken_groups(self) -> list[int]:
        """Groups of samples that were taken but not used in a step yet."""
        with self._account:
            return list({taken.group_id for taken in self._taken})
