"""The transport `HTTPFull`: full weights over HTTP, for TRL's AsyncGRPOTrainer(weight_transfer=...).

    TRL (main thread)                    this object's thread                     vLLM pods
    pause                                (nothing yet: vLLM goes on while files are written)
    send_weights: announce the version ► each pod, all at once ─────────────────► begin to fetch, go on generating
                  write the files        (each part is announced when written)    fetch and verify part by part
                  all written ─────────► each pod, all at once ─────────────────► pause, load, label, resume
    resume                               (done already)
                                         watcher, every 2 s ────────────────────► /weight_info; mends what differs

The first version is announced when it is written: how much room it needs is not known before. Where rollouts may be of
earlier versions, `send_weights` returns when all is written, except for the first sync and where parity is due. Rank 0
only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from gymtrain_api.transports import TransportName
from gymtrain_api.wiring import SERVED_MODEL_NAME
from gymtrain_trainer.weights.parity.check import staged_logprobs
from gymtrain_trainer.weights.parity.watch import ParityWatch
from gymtrain_trainer.weights.pods.client import PublishedVersion, VllmPod
from gymtrain_trainer.weights.pods.fleet import Outcome, PullCarrier
from gymtrain_trainer.weights.settings import SyncSettings
from gymtrain_trainer.weights.stats import SyncEvent
from gymtrain_trainer.weights.store.staging import stage
from gymtrain_trainer.weights.store.weight_store import Draft, WeightStore
from gymtrain_trainer.weights.transports.pushing import PushTransport

if TYPE_CHECKING:
    from gymtrain_trainer.weights.transports.protocol import NamedTensors


class HTTPFull(PushTransport):
    """TRL's WeightTransferProtocol."""

    name: TransportName = "HTTPFull"

    def __init__(
        self,
        settings: SyncSettings,
        store: WeightStore,
        *,
        dtype: str | None = None,
        max_staleness: int = 0,
        reason: str = "",
        parity: ParityWatch | None = None,
        observer: Callable[[SyncEvent], None] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            settings: of the run.
            store: folder that `weight_routes` serves.
            dtype: what floating-point tensors are cast to, the servers' own type; None leaves them.
            max_staleness: versions that rollouts may be behind; with 0 every sync is waited for.
            reason: why this transport.
            parity: check after syncs; None leaves it out.
            observer: called for each event, from any thread.
        """
        self._pull = PullCarrier()
        super().__init__(settings, self._pull, reason=reason, parity=parity, observer=observer)
        self._store = store
        self._dtype = dtype
        self._max_staleness = max_staleness
        self._last_bytes = 0  # of a version; 0 before the first
        self._under_way: tuple[int, Future[Outcome]] | None = None  # a sync whose outcome was not looked at yet

    @property
    def current_version(self) -> str | None:
        """Label of the version that was sent last; None before the first sync."""
        return self.settings.version(self._under_way[0]) if self._under_way is not None else self._held_version

    def init_weight_transfer(self) -> None:
        """Starts the watcher."""
        self._start()

    def pause(self) -> None:
        """Nothing: `send_weights` pauses each pod only while it loads."""

    def send_weights(self, iterator: NamedTensors) -> None:
        """Writes the weights, and brings every pod to them.

        Raises:
            StagingError: the disk is full.
            NoServersError: no pod answered before the deadline, in this sync or the last one.
            WeightSyncError: a pod refused, in this sync or the last one.
            WeightParityError: vLLM computes something else than the trainer.
        """
        self._settle()
        started = time.monotonic()
        number = self.numbers.next()
        draft = self._store.begin(number, self.settings.version(number), self._last_bytes)
        written, background = asyncio.Event(), self._start()
        sync = background.submit(self._sync(number, draft, written, started, ahead=self._last_bytes > 0))
        try:
            stage(draft, iterator, self._dtype)
        except BaseException:
            sync.cancel()
            self._store.drop(number)
            raise
        self._last_bytes = draft.manifest.total_bytes
        self._under_way = number, sync
        background.call(written.set)
        check = self._parity_due()
        if check or not self.numbers.current or not self._max_staleness:
            pods = self._settle()
            if check:
                self._run_parity(
                    pods, SERVED_MODEL_NAME, lambda config: staged_logprobs(config, self._store.weights(number))
                )

    def resume(self) -> None:
        """Nothing: every pod was resumed as soon as it had loaded, and the watcher resumes what was missed."""

    @property
    def wants_resend(self) -> bool:
        """Whether a sync failed since `send_weights` returned."""
        sync = self._under_way[1] if self._under_way is not None else None
        return sync is not None and sync.done() and not sync.cancelled() and sync.exception() is not None

    def resend(self) -> None:
        """Nothing to send: the watcher mends the pods.

        Raises:
            NoServersError: no pod took the last version before the deadline.
            WeightSyncError: a pod refused the last version.
        """
        if self.wants_resend:
            self._settle()

    def destroy(self) -> None:
        """Ends the thread and frees the disk. The pods keep what they have."""
        super().destroy()
        self._under_way = None
        self._store.clear()

    def _settle(self) -> list[VllmPod]:
        """Waits for the sync that is under way; the pods that hold its version."""
        if self._under_way is None:
            return []
        number, sync = self._under_way
        try:
            outcome = sync.result()
        except BaseException:
            sync.cancel()
            self._store.drop(number)  # the watcher brings pods that have it back to the version before
            raise
        finally:
            self._under_way = None
        return list(outcome.done)

    def _version(self, number: int) -> PublishedVersion:
        return PublishedVersion(self.settings.version(number), self.settings.manifest_url(number))

    async def _sync(self, number: int, draft: Draft, written: asyncio.Event, started: float, *, ahead: bool) -> Outcome:
        async with self._parts()[1]:
            begun = await self._begin(number) if ahead else {}
            try:
                await written.wait()
                staged = time.monotonic()
                outcome = await self._bring(number, begun)
            finally:
                for call in begun.values():
                    call.cancel()
        self._account(number, outcome, draft.manifest.fresh_bytes, started, staged)
        return outcome

    async def _begin(self, number: int) -> dict[VllmPod, asyncio.Task[None]]:
        """Lets all pods fetch what is being written, as far as they answer."""
        fleet, _ = self._parts()
        version, seconds = self._version(number), self.settings.timeout_seconds
        return {
            pod: asyncio.create_task(self._pull.begin(fleet.client(pod), version, seconds))
            for pod in await fleet.pods()
        }
