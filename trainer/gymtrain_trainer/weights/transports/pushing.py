"""What the transports share that push a version to each pod by itself: the push, its account, and the repair."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Mapping

from gymtrain_trainer.weights.pods.client import PublishedVersion, VllmPod
from gymtrain_trainer.weights.pods.fleet import Outcome
from gymtrain_trainer.weights.stats import SyncEvent
from gymtrain_trainer.weights.transports.base import PodTransport


class PushTransport(PodTransport):
    """Base of the transports whose pods take a version one by one."""

    @abstractmethod
    def _version(self, number: int) -> PublishedVersion:
        """Where pods find a version that is not forgotten yet."""

    def _account(self, number: int, outcome: Outcome, size: int, started: float, staged: float) -> None:
        """Notes a sync that began at `started` and whose weights lay ready at `staged`."""
        now = time.monotonic()
        self.stats.retries += outcome.retries
        self.stats.unreachable = sorted(pod.url for pod in outcome.unreachable)
        self.stats.synced(size, now - started, staged - started, max(outcome.done.values()))
        self._observer(SyncEvent("sync", self.settings.version(number), now - started, size, len(outcome.done)))

    # In the background thread.

    async def _bring(self, number: int, begun: Mapping[VllmPod, asyncio.Task[None]] | None = None) -> Outcome:
        """Pushes to all pods, within the caller's turn: a repair must not push the version before meanwhile."""
        fleet, _ = self._parts()
        outcome = await fleet.bring(self._version(number), self.settings.timeout_seconds, begun)
        self.numbers.current = number
        return outcome

    def _current(self) -> PublishedVersion | None:
        return self._version(self.numbers.current) if self.numbers.current else None

    async def _look(self) -> None:
        await self._repair(self._current)
