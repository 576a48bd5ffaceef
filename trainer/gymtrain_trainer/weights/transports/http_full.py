"""The transport `HTTPFull`: full weights over HTTP.

    main thread                          the thread of the pods                   vLLM pods
    pause                                (nothing yet: vLLM goes on while files are written)
    send: announce the version ────────► each pod, all at once ─────────────────► begin to fetch, keep generating
          write the files                (each part is announced when written)    fetch and verify part by part
          all written                    wait until a pod says that it has all
                                         each pod by itself ────────────────────► pause, load, label, resume
    resume                               (done already)

The first version is announced when it is written: how much room it needs is not known before. Where rollouts may be of
earlier versions, `send` returns when all is written, and the pods load while the trainer goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from gymtrain_api.transports import TransportName
from gymtrain_trainer.weights.pods.client import PodClient, PublishedVersion, VllmPod
from gymtrain_trainer.weights.store.fetches import Fetch
from gymtrain_trainer.weights.store.staging import stage
from gymtrain_trainer.weights.store.weight_store import Draft, WeightStore
from gymtrain_trainer.weights.transports.transport import Delivered, Transport

if TYPE_CHECKING:
    from gymtrain_trainer.weights.transports.transport import NamedTensors

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0  # between looks at a pod that fetches
# Without a request of such a pod: it may have restarted, and its answer to a load says more. Enough for the parts that
# it fetches at once (8 of 64 MiB) at 9 MB/s, as where many pods share one network card.
_SILENT_SECONDS = 60.0


class HTTPFull(Transport):
    """Pods pull files that the trainer writes."""

    name: TransportName = "HTTPFull"

    def __init__(self, store: WeightStore, *, dtype: str | None = None, max_staleness: int = 0, nodes: int = 1) -> None:
        """
        Args:
            store: folder that `weight_routes` serves.
            dtype: what floating-point tensors are cast to, the servers' own type; None leaves them.
            max_staleness: versions that rollouts may be behind; with 0 every sync is waited for.
            nodes: pods of each server.
        """
        self._nodes = nodes
        self.overlaps = max_staleness > 0
        self._store = store
        self._dtype = dtype
        self._last_bytes = 0  # of a version; 0 before the first
        self._begun: dict[VllmPod, tuple[PublishedVersion, Fetch]] = {}  # what pods fetch already
        self._fetched_at = 0.0  # by the last pod of a sync

    def send(self, number: int, tensors: NamedTensors, delivered: Callable[[Delivered], None]) -> Future[None]:
        """Writes the weights, while pods fetch what is written; what is left then is under way.

        Raises:
            StagingError: the disk is full.
        """
        started = time.monotonic()
        draft = self._store.begin(number, self.fleet.settings.version(number), self._last_bytes)
        written = asyncio.Event()
        ahead = self._last_bytes > 0
        sync = self.thread.submit(self._bring(self.published(number), draft, written, started, delivered, ahead=ahead))
        try:
            stage(draft, tensors, self._dtype)
        except BaseException:
            sync.cancel()
            self.withdraw(number)
            raise
        self._last_bytes = draft.manifest.total_bytes
        self.thread.call(written.set)
        return sync

    def withdraw(self, number: int) -> None:
        """Drops the files: the watcher brings pods that have them back to the version before."""
        self._store.drop(number)

    def close(self) -> None:
        """Frees the disk."""
        self._store.clear()

    # In the thread of the pods.

    def published(self, number: int) -> PublishedVersion:
        """By its manifest."""
        settings = self.fleet.settings
        return PublishedVersion(settings.version(number), settings.manifest_url(number))

    async def begin(self, client: PodClient, version: PublishedVersion, seconds: float) -> None:
        """Lets a pod fetch what is still being written; it keeps generating until `push`.

        Raises:
            PodError: it doesn't. `push` asks it for all.
        """
        self._forget(client.pod)
        fetch = self._store.fetches.begin(self._nodes)
        try:
            await client.begin_pull(version, seconds, fetch.id)
        except BaseException:
            self._store.fetches.forget(fetch)
            raise
        self._begun[client.pod] = version, fetch

    async def push(self, client: PodClient, version: PublishedVersion, seconds: float) -> float:
        """Lets the pod load what it fetched, once it has all; fetch first, where it did not begin."""
        started = time.monotonic()
        begun, fetch = self._begun.get(client.pod, (None, None))
        try:
            if begun == version and fetch is not None:
                await _until_fetched(client, fetch, started + seconds)
                self._fetched_at = time.monotonic()
        finally:
            self._forget(client.pod)
        left = max(1.0, started + seconds - time.monotonic())
        return await client.pull(version, left, begun=begun == version)

    def _forget(self, pod: VllmPod) -> None:
        _, fetch = self._begun.pop(pod, (None, None))
        if fetch is not None:
            self._store.fetches.forget(fetch)

    async def _bring(
        self,
        version: PublishedVersion,
        draft: Draft,
        written: asyncio.Event,
        started: float,
        delivered: Callable[[Delivered], None],
        *,
        ahead: bool,
    ) -> None:
        fleet, seconds = self.fleet, self.fleet.settings.timeout_seconds
        async with fleet.lock:
            begun: dict[VllmPod, asyncio.Task[None]] = {}
            if ahead:
                for pod in await fleet.pods():
                    begun[pod] = asyncio.create_task(self.begin(fleet.client(pod), version, seconds))
            try:
                await written.wait()
                staged = self._fetched_at = time.monotonic()
                outcome = await fleet.bring(version, seconds, begun)
            finally:
                for call in begun.values():
                    call.cancel()
                for pod in begun:
                    self._forget(pod)
            found = Delivered.by(outcome, draft.manifest.fresh_bytes, started, staged)
            delivered(replace(found, fetched_seconds=self._fetched_at - staged))


async def _until_fetched(client: PodClient, fetch: Fetch, deadline: float) -> None:
    """Until the pod has all that it is to load, or can't be waited for any longer.

    Raises:
        PodUnreachableError: it is gone, or restarts.
    """
    while not await fetch.ends_within(_LOOK_SECONDS):
        await client.health()
        if fetch.silent_seconds > _SILENT_SECONDS or time.monotonic() > deadline:
            logger.warning("%s has not said that it holds the weights: it is told to load them", client.pod.url)
            return
