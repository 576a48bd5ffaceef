"""The transport `HTTPFull`: full weights over HTTP, for TRL's AsyncGRPOTrainer(weight_transfer=...).

    TRL (main thread)                    this object's thread                        vLLM pods
    init_weight_transfer ──────────────► find pods, probe, choose the transport ───► /openapi.json, /server_info
    pause                                (nothing yet: vLLM goes on while files are written)
    send_weights: write the files ─────► each pod, all at once ────────────────────► pause, fetch + load, label, resume
    resume                               (done already)
                                         watcher, every 2 s ───────────────────────► /weight_info; mends what differs

Rank 0 only.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp

from gymtrain_api.transports import choose
from gymtrain_trainer.weights.background import Background
from gymtrain_trainer.weights.errors import PodError, TransportRefusedError, WeightSyncError
from gymtrain_trainer.weights.fleet import Fleet, Outcome
from gymtrain_trainer.weights.hosts import Pod
from gymtrain_trainer.weights.parity import (
    ParityCheck,
    Sample,
    ShardedModelError,
    judge,
    sample,
    staged_logprobs,
)
from gymtrain_trainer.weights.probe import ServerReport, probe_servers, wait_for_servers
from gymtrain_trainer.weights.push import Version
from gymtrain_trainer.weights.settings import SyncSettings
from gymtrain_trainer.weights.staging import stage
from gymtrain_trainer.weights.stats import SyncEvent, SyncStats
from gymtrain_trainer.weights.store import WeightStore

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_BACKOFF_LIMIT_SECONDS = 30.0


class HTTPFull:
    """TRL's WeightTransferProtocol."""

    def __init__(
        self,
        settings: SyncSettings,
        store: WeightStore,
        *,
        parity: ParityCheck | None = None,
        observer: Callable[[SyncEvent], None] | None = None,
        requested: str = "Auto",
    ) -> None:
        """Starts nothing yet.

        Args:
            settings: of the run.
            store: folder that `weight_routes` serves.
            parity: check after the first sync; None leaves it out.
            observer: called for each event, from any thread.
            requested: `spec.weightSync.transport`.
        """
        self.settings = settings
        self.stats = SyncStats()
        self.current_number = 0
        self.transport_reason = ""
        self._store = store
        self._parity = parity
        self._observer = observer or (lambda _: None)
        self._requested = requested
        self._dtype: str | None = None
        self._background: Background | None = None
        self._session: aiohttp.ClientSession | None = None
        self._fleet: Fleet | None = None
        self._turn: asyncio.Lock | None = None  # one push at a time: a sync or a repair
        self._lifecycle = threading.Lock()

    @property
    def current_version(self) -> str | None:
        """Label of the version that vLLM holds; None before the first sync."""
        return self.settings.version(self.current_number) if self.current_number else None

    # What TRL calls.

    def init_weight_transfer(self) -> None:
        """Finds the servers and settles the transport.

        Raises:
            NoServersError: no vLLM pod answers.
            TransportRefusedError: they lack what the transport needs.
        """
        reports = self._start().run(self._probe())
        choice = choose(self._requested, [report.offer for report in reports])
        if choice.transport is None:
            raise TransportRefusedError(choice.reason)
        self.transport_reason = choice.reason
        dtypes = {report.dtype for report in reports}
        if len(dtypes) > 1:
            raise TransportRefusedError(f"vLLM pods hold weights of different types: {sorted(map(str, dtypes))}")
        self._dtype = dtypes.pop()
        logger.info("weight transport %s; vLLM holds %s", choice.reason, self._dtype)

    def pause(self) -> None:
        """Nothing: `send_weights` pauses each pod only while it loads."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Writes the weights, then brings every pod to them.

        Raises:
            StagingError: the disk is full.
            NoServersError: no pod answered before the deadline.
            WeightSyncError: a pod refused.
            WeightParityError: after the first sync, vLLM computes something else than the trainer.
        """
        started = time.monotonic()
        number = self.current_number + 1
        version = Version(self.settings.version(number), self.settings.manifest_url(number))
        manifest = stage(self._store, number, version.label, iterator, self._dtype)
        staged = time.monotonic()
        try:
            outcome = self._start().run(self._sync(version, number))
        except BaseException:
            self._store.drop(number)  # the watcher brings pods that have it back to the version before
            raise
        now = time.monotonic()
        stats = self.stats
        stats.syncs += 1
        stats.retries += outcome.retries
        stats.bytes_staged += manifest.total_bytes
        stats.last_bytes = manifest.total_bytes
        stats.last_seconds, stats.last_stage_seconds = now - started, staged - started
        stats.last_pause_seconds = max(outcome.done.values())
        stats.unreachable = sorted(pod.url for pod in outcome.unreachable)
        self._observer(SyncEvent("sync", version.label, now - started, manifest.total_bytes, len(outcome.done)))
        if number == 1 and self._parity is not None:
            self._check_parity(self._parity, outcome, number)

    def resume(self) -> None:
        """Nothing: every pod was resumed as soon as it had loaded, and the watcher resumes what was missed."""

    def destroy(self) -> None:
        """Ends the thread and frees the disk. The pods keep what they have."""
        with self._lifecycle:
            if self._background is not None:
                self._background.run(self._close())
                self._background.stop()
                self._background = None
        self._store.clear()

    # What the rollout worker and operators of the trainer call.

    async def pod_versions(self) -> dict[str, str | None]:
        """What each pod holds now, by URL; None where it doesn't answer. From any event loop."""
        held = await asyncio.wrap_future(self._start().submit(self._versions()))
        return {pod.url: label for pod, label in held.items()}

    def repair(self) -> int:
        """One round of the watcher, from any thread; returns the number of pods mended."""
        return self._start().run(self._repair())

    # In the background thread.

    def _start(self) -> Background:
        with self._lifecycle:
            if self._background is None:
                self._background = Background("weights")
                self._background.run(self._open())
                self._background.submit(self._watch())
            return self._background

    async def _open(self) -> None:
        self._session = aiohttp.ClientSession()
        self._fleet = Fleet(self.settings, self._session)
        self._turn = asyncio.Lock()

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _probe(self) -> list[ServerReport]:
        pods = await wait_for_servers(self.settings, deadline_seconds=self.settings.timeout_seconds)
        return await probe_servers(pods)

    def _parts(self) -> tuple[Fleet, asyncio.Lock]:
        assert self._fleet is not None
        assert self._turn is not None
        return self._fleet, self._turn

    async def _versions(self) -> dict[Pod, str | None]:
        return await self._parts()[0].versions()

    async def _sync(self, version: Version, number: int) -> Outcome:
        fleet, turn = self._parts()
        async with turn:
            outcome = await fleet.bring(version, self.settings.timeout_seconds)
            self.current_number = number  # within the turn: a repair must not push the version before
            return outcome

    async def _repair(self) -> int:
        fleet, turn = self._parts()
        async with turn:
            number = self.current_number
            if number == 0:
                return 0
            started = time.monotonic()
            version = Version(self.settings.version(number), self.settings.manifest_url(number))
            held, errors = await fleet.repair(version, self.settings.timeout_seconds)
        self.stats.unreachable = sorted(pod.url for pod, label in held.items() if label is None)
        mended = [pod for pod, label in held.items() if label not in (None, version.label) and pod not in errors]
        for pod in mended:
            self.stats.repairs += 1
            message = f"{pod.url} held {held[pod]!r}"
            logger.warning("%s: brought to %s", message, version.label)
            self._observer(SyncEvent("repair", version.label, time.monotonic() - started, 0, 1, message))
        for pod, error in errors.items():
            logger.warning("cannot bring %s to %s: %s", pod.url, version.label, error)
            self._observer(SyncEvent("pod_failed", version.label, time.monotonic() - started, 0, 1, error))
        if errors and not mended:
            raise WeightSyncError("; ".join(errors.values()))
        return len(mended)

    async def _watch(self) -> None:
        """Repairs for ever; pods that can't be repaired get no traffic, so that it may wait longer each time."""
        pause = self.settings.repair_seconds
        while True:
            await asyncio.sleep(pause)
            try:
                await self._repair()
                pause = self.settings.repair_seconds
            except WeightSyncError:
                pause = min(2 * pause, _BACKOFF_LIMIT_SECONDS)
            except Exception:
                logger.exception("the watcher of vLLM's weights failed; it goes on")

    def _check_parity(self, check: ParityCheck, outcome: Outcome, number: int) -> None:
        for pod, samples in self._start().run(self._samples(check, outcome)).items():
            try:
                difference = judge(pod, samples, check, self._dtype)
            except ShardedModelError as sharded:
                check = replace(check, logprobs=staged_logprobs(sharded.config, self._store.weights(number)))
                difference = judge(pod, samples, check, self._dtype)
            self.stats.last_parity = difference
            logger.info("parity with %s: mean difference %.2g", pod, difference)

    async def _samples(self, check: ParityCheck, outcome: Outcome) -> dict[str, list[Sample]]:
        fleet, _ = self._parts()
        try:
            return {
                pod.url: await sample(fleet.client(pod), check, self.settings.timeout_seconds) for pod in outcome.done
            }
        except PodError as error:
            raise WeightSyncError(f"parity check after the first sync: {error}") from error
