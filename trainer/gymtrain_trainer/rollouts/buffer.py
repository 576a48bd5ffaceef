"""The queue between rollout worker and trainer, and the account of what the trainer took from it.

The trainer takes the groups of a step once the step before has ended (framework.py), so the weights that a group meets
when it is taken are those of the step that uses it. That is where its staleness is counted.

Groups leave in the order of the weights that sampled them, oldest first: one that took long has aged enough.
"""

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from gymtrain_trainer.framework import SampleGroup, TrainingSample
from gymtrain_trainer.rollouts.pace import StepWait


@dataclass(frozen=True)
class UsedGroup:
    """A group that the trainer took, and the model version of the step that uses it."""

    group: SampleGroup
    version: int

    @property
    def staleness(self) -> tuple[int, ...]:
        """Of each rollout: model versions between the oldest weights that sampled a part of it and the step's."""
        oldest: dict[int, int] = {}
        for sample in self.group.samples:
            oldest[sample.rollout] = min(sample.version, oldest.get(sample.rollout, sample.version))
        return tuple(self.version - version for version in oldest.values())


@dataclass(frozen=True)
class Stock:
    """Groups that the trainer hasn't trained on yet, and those that it has."""

    waiting: int
    taken: int  # for the step that runs
    used: int  # in steps that have ended
    steps: int  # that have ended


class GroupBuffer:
    """Groups in order. Unbounded: the worker bounds what it starts. `get` and `use` belong to the trainer's thread."""

    def __init__(self, version: Callable[[], int]) -> None:
        """`version`: the trainer's model version now."""
        self._version = version
        self._changed = threading.Condition()
        self._heap: list[tuple[int, int, SampleGroup]] = []  # oldest version, arrival
        self._arrivals = itertools.count()
        self._taken: list[UsedGroup] = []
        self._used = 0
        self._steps = 0
        self._waited = 0.0  # seconds, in this step
        self._left = 0  # groups, when the last one of this step was taken
        self._step_began: float | None = None
        self.wait = StepWait(0.0, 0)  # of the step that ended last
        self.on_change: Callable[[], None] | None = None  # a group was taken, or a step has ended
        self.on_taken: Callable[[TrainingSample], None] | None = None  # each sample of it, in the trainer's thread
        self.while_waiting: Callable[[], AbstractContextManager[Any]] = nullcontext  # around each wait

    def put(self, group: SampleGroup) -> None:
        """Queues a group."""
        with self._changed:
            heapq.heappush(self._heap, (group.version, next(self._arrivals), group))
            self._changed.notify()

    def get(self, timeout: float) -> SampleGroup:
        """The next group.

        Raises:
            queue.Empty: none came within `timeout` seconds.
        """
        began = time.monotonic()
        if self._step_began is None:
            self._step_began = began
        try:
            with self.while_waiting(), self._changed:
                if not self._changed.wait_for(lambda: self._heap, timeout):
                    raise queue.Empty
                group = heapq.heappop(self._heap)[2]
                self._left = len(self._heap)
                self._taken.append(UsedGroup(group, self._version()))
        finally:
            self._waited += time.monotonic() - began
        if self.on_taken is not None:
            for sample in group.samples:
                self.on_taken(sample)
        self._tell()
        return group

    def use(self) -> list[UsedGroup]:
        """What the trainer took since the last call: the groups of the step that ends now."""
        with self._changed:
            used, self._taken = self._taken, []
            self._used += len(used)
            self._steps += 1
            now = time.monotonic()
            if self._step_began is not None:
                self.wait = StepWait(self._waited / max(now - self._step_began, 1e-9), self._left)
            self._step_began, self._waited = now, 0.0
        self._tell()
        return used

    def qsize(self) -> int:
        """Groups that wait."""
        with self._changed:
            return len(self._heap)

    def stock(self) -> Stock:
        """The account now."""
        with self._changed:
            return Stock(len(self._heap), len(self._taken), self._used, self._steps)

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change()
