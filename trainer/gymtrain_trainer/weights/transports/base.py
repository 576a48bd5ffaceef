"""What all transports share: the thread that talks to the pods, its watcher, the versions, and the parity check."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import aiohttp

from gymtrain_api.transports import TransportName
from gymtrain_api.wiring import WeightsHeld
from gymtrain_trainer.weights.errors import WeightSyncError
from gymtrain_trainer.weights.event_loop_thread import Background
from gymtrain_trainer.weights.parity.check import LogProbs
from gymtrain_trainer.weights.parity.watch import ParityWatch
from gymtrain_trainer.weights.pods.client import PublishedVersion, VllmPod
from gymtrain_trainer.weights.pods.fleet import Carrier, Fleet
from gymtrain_trainer.weights.settings import SyncSettings
from gymtrain_trainer.weights.stats import SyncEvent, SyncStats
from gymtrain_trainer.weights.version_numbers import SyncNumbers

logger = logging.getLogger(__name__)

_BACKOFF_LIMIT_SECONDS = 30.0


class PodTransport(ABC):
    """Base of the transports. Rank 0 only."""

    name: TransportName

    def __init__(
        self,
        settings: SyncSettings,
        carrier: Carrier,
        *,
        reason: str = "",
        parity: ParityWatch | None = None,
        observer: Callable[[SyncEvent], None] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            settings: of the run.
            carrier: how one pod is asked and served.
            reason: why this transport.
            parity: check after the first sync and some of the later ones; None leaves it out.
            observer: called for each event, from any thread.
        """
        self.settings = settings
        self.reason = reason
        self.stats = SyncStats()
        self.numbers = SyncNumbers(settings.run, settings.attempt, settings.start_number)
        self._carrier = carrier
        self._parity = parity
        self._observer = observer or (lambda _: None)
        self._background: Background | None = None
        self._session: aiohttp.ClientSession | None = None
        self._fleet: Fleet | None = None
        self._turn: asyncio.Lock | None = None  # one push at a time: a sync or a repair
        self._lifecycle = threading.Lock()

    @property
    def current_version(self) -> str | None:
        """Label of the version that was sent last; None before the first sync."""
        return self._held_version

    @property
    def _held_version(self) -> str | None:
        """Label of the version that vLLM is to hold now."""
        return self.settings.version(self.numbers.current) if self.numbers.current else None

    def destroy(self) -> None:
        """Ends the thread. The pods keep what they have."""
        with self._lifecycle:
            if self._background is not None:
                self._background.cancel_all()  # a sync too: it resumes its pods while there is a session
                self._background.run(self._close())
                self._background.stop()
                self._background = None

    async def pod_versions(self) -> dict[str, str | None]:
        """What each pod holds now, by URL; None where it doesn't answer. From any event loop."""
        held = await asyncio.wrap_future(self._start().submit(self._versions()))
        return {pod.url: label for pod, label in held.items()}

    def held(self) -> WeightsHeld:
        """The version that pods are to hold, and what each holds by the last look."""
        known = dict(self._fleet.known) if self._fleet is not None else {}
        return WeightsHeld(version=self._held_version, pods={pod.url: label for pod, label in known.items()})

    @property
    def wants_resend(self) -> bool:
        """Never, where the watcher itself can mend a pod."""
        return False

    def resend(self) -> None:
        """Nothing: the watcher mends the pods."""
        return

    # In the background thread.

    @abstractmethod
    async def _look(self) -> None:
        """One round of the watcher.

        Raises:
            WeightSyncError: a pod can't be mended; the watcher waits longer before it tries again.
        """

    def _start(self) -> Background:
        with self._lifecycle:
            if self._background is None:
                self._background = Background("weights")
                self._background.run(self._open())
                self._background.submit(self._watch())
            return self._background

    async def _open(self) -> None:
        self._session = aiohttp.ClientSession()
        self._fleet = Fleet(self.settings, self._session, self._carrier)
        self._turn = asyncio.Lock()

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _parts(self) -> tuple[Fleet, asyncio.Lock]:
        assert self._fleet is not None
        assert self._turn is not None
        return self._fleet, self._turn

    async def _versions(self) -> dict[VllmPod, str | None]:
        return await self._parts()[0].versions()

    async def _repair(self, current: Callable[[], PublishedVersion | None]) -> int:
        """Brings pods with other weights to the current version; returns how many.

        Raises:
            WeightSyncError: none of them took it.
        """
        fleet, turn = self._parts()
        async with turn:
            version = current()  # within the turn: a sync may just have ended
            if version is None:
                await fleet.versions()
                return 0
            started = time.monotonic()
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
        """Looks for ever; pods that can't be mended get no traffic, so that it may wait longer each time."""
        pause = self.settings.repair_seconds
        while True:
            await asyncio.sleep(pause)
            try:
                await self._look()
                pause = self.settings.repair_seconds
            except WeightSyncError:
                pause = min(2 * pause, _BACKOFF_LIMIT_SECONDS)
            except Exception:
                logger.exception("the watcher of vLLM's weights failed; it goes on")

    # After a sync.

    def _parity_due(self) -> bool:
        """Counts one sync; whether log-probabilities are to be compared after it."""
        return self._parity is not None and self._parity.due()

    def _run_parity(
        self, pods: list[VllmPod], model: str, fallback: Callable[[object], LogProbs] | None = None
    ) -> None:
        """Compares log-probabilities.

        Args:
            pods: that hold the new version.
            model: name to ask vLLM for.
            fallback: what computes them where this process holds only its share of the model, by its configuration;
                None leaves the check out then.

        Raises:
            WeightParityError: vLLM computes something else than the trainer.
        """
        assert self._parity is not None
        fleet, _ = self._parts()
        self.stats.last_parity = self._parity.run(
            {pod.url: fleet.client(pod) for pod in pods},
            model,
            self._start().run,
            self.settings.timeout_seconds,
            fallback,
        )
