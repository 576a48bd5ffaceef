"""Changes of the pods, as the API server shows them: one list, then watches, each of which continues the one before."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from gymtrain_broker.backends.backend import Backend
from gymtrain_broker.metrics import Metrics
from gymtrain_broker.objects import pod_view
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_kube.errors import ExpiredError, KubeError

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


@dataclass(frozen=True)
class PodsListed:
    """All pods there are, as of a version; 0 where the API server named none."""

    pods: Sequence[SandboxPod]
    version: int


@dataclass(frozen=True)
class PodSeen:
    """A pod is new, or has changed."""

    pod: SandboxPod


@dataclass(frozen=True)
class PodGone:
    """A pod is gone."""

    name: str


type PodChange = PodsListed | PodSeen | PodGone


class PodWatch:
    """List and watch of the pods of one run."""

    def __init__(self, backend: Backend, metrics: Metrics) -> None:
        self._backend = backend
        self._metrics = metrics
        self._version = ""
        self.heard_at = -1e9  # time.monotonic() of the last sign that what it has shown is current

    async def changes(self) -> AsyncIterator[PodChange]:
        """Yields changes without end. A reader that asks for the next one has taken in the one before."""
        pause = _FIRST_PAUSE
        while True:
            try:
                if not self._version:
                    found, version = await self._backend.list_all()
                    self._metrics.relists.inc()
                    yield PodsListed([pod_view.read(pod) for pod in found], int(version) if version.isdigit() else 0)
                    self._version = version
                    self._heard()
                began = time.monotonic()
                async for change in self._watch():
                    yield change
                if time.monotonic() - began < _FIRST_PAUSE:
                    await asyncio.sleep(_FIRST_PAUSE)  # something between us and the API server ends watches
                pause = _FIRST_PAUSE
            except ExpiredError:
                logger.info("the watch fell behind: listing all pods again")
                self._version = ""
            except KubeError as error:
                logger.warning("no view of the pods, next try in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _watch(self) -> AsyncIterator[PodChange]:
        async for kind, item in self._backend.watch(self._version):
            if kind == "DELETED":
                yield PodGone(item["metadata"]["name"])
            elif kind != "BOOKMARK":
                yield PodSeen(pod_view.read(item))
            self._version = str(item["metadata"].get("resourceVersion") or self._version)
            self._heard()
        self._heard()

    def _heard(self) -> None:
        self.heard_at = time.monotonic()
