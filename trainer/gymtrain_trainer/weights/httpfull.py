"""The transport `HTTPFull`: full weights over HTTP, for TRL's AsyncGRPOTrainer(weight_transfer=...).

    TRL (main thread)                    this object's thread                        vLLM pods
    pause                                (nothing yet: vLLM goes on while files are written)
    send_weights: write the files ─────► each pod, all at once ────────────────────► pause, fetch + load, label, resume
    resume                               (done already)
                                         watcher, every 2 s ───────────────────────► /weight_info; mends what differs

Rank 0 only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gymtrain_api.transports import Transport
from gymtrain_api.wiring import SERVED_MODEL_NAME
from gymtrain_trainer.weights.base import PodTransport
from gymtrain_trainer.weights.fleet import Outcome
from gymtrain_trainer.weights.parity import staged_logprobs
from gymtrain_trainer.weights.parity_watch import ParityWatch
from gymtrain_trainer.weights.push import PullCarrier, Version
from gymtrain_trainer.weights.settings import SyncSettings
from gymtrain_trainer.weights.staging import stage
from gymtrain_trainer.weights.stats import SyncEvent
from gymtrain_trainer.weights.store import WeightStore

if TYPE_CHECKING:
    from gymtrain_trainer.weights.protocol import NamedTensors


class HTTPFull(PodTransport):
    """TRL's WeightTransferProtocol."""

    name: Transport = "HTTPFull"

    def __init__(
        self,
        settings: SyncSettings,
        store: WeightStore,
        *,
        dtype: str | None = None,
        reason: str = "",
        parity: ParityWatch | None = None,
        observer: Callable[[SyncEvent], None] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            settings: of the run.
            store: folder that `weight_routes` serves.
            dtype: what floating-point tensors are cast to, the servers' own type; None leaves them.
            reason: why this transport.
            parity: check after syncs; None leaves it out.
            observer: called for each event, from any thread.
        """
        super().__init__(settings, PullCarrier(), reason=reason, parity=parity, observer=observer)
        self._store = store
        self._dtype = dtype

    def init_weight_transfer(self) -> None:
        """Starts the watcher."""
        self._start()

    def pause(self) -> None:
        """Nothing: `send_weights` pauses each pod only while it loads."""

    def send_weights(self, iterator: NamedTensors) -> None:
        """Writes the weights, then brings every pod to them.

        Raises:
            StagingError: the disk is full.
            NoServersError: no pod answered before the deadline.
            WeightSyncError: a pod refused.
            WeightParityError: vLLM computes something else than the trainer.
        """
        started = time.monotonic()
        number = self.numbers.next()
        version = self._version(number)
        manifest = stage(self._store, number, version.label, iterator, self._dtype)
        staged = time.monotonic()
        try:
            outcome = self._start().run(self._sync(version, number))
        except BaseException:
            self._store.drop(number)  # the watcher brings pods that have it back to the version before
            raise
        now = time.monotonic()
        self.stats.retries += outcome.retries
        self.stats.unreachable = sorted(pod.url for pod in outcome.unreachable)
        self.stats.synced(manifest.total_bytes, now - started, staged - started, max(outcome.done.values()))
        self._observer(SyncEvent("sync", version.label, now - started, manifest.total_bytes, len(outcome.done)))
        self._check_parity(
            list(outcome.done),
            SERVED_MODEL_NAME,
            lambda config: staged_logprobs(config, self._store.weights(number)),
        )

    def resume(self) -> None:
        """Nothing: every pod was resumed as soon as it had loaded, and the watcher resumes what was missed."""

    def destroy(self) -> None:
        """Ends the thread and frees the disk. The pods keep what they have."""
        super().destroy()
        self._store.clear()

    def _version(self, number: int) -> Version:
        return Version(self.settings.version(number), self.settings.manifest_url(number))

    async def _sync(self, version: Version, number: int) -> Outcome:
        fleet, turn = self._parts()
        async with turn:
            outcome = await fleet.bring(version, self.settings.timeout_seconds)
            self.numbers.current = number  # within the turn: a repair must not push the version before
            return outcome

    def _current(self) -> Version | None:
        return self._version(self.numbers.current) if self.numbers.current else None

    async def _look(self) -> None:
        await self._repair(self._current)
