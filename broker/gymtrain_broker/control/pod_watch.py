"""Keeps the broker's picture of the pods: one list, then a watch that goes on from its place, minute after minute."""

import asyncio
import logging
import time
from typing import Any, Protocol

from gymtrain_broker.backends.backend import Backend
from gymtrain_broker.metrics import Metrics
from gymtrain_kube.errors import ExpiredError, KubeError

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


class Viewer(Protocol):
    """Who wants to know."""

    def listed(self, pods: list[dict[str, Any]], version: str) -> None:
        """All pods there are, as of `version`."""

    def seen(self, pod: dict[str, Any]) -> None:
        """A pod is new, or another."""

    def gone(self, pod: dict[str, Any]) -> None:
        """A pod is no more."""


class PodWatch:
    """List and watch."""

    def __init__(self, backend: Backend, viewer: Viewer, metrics: Metrics) -> None:
        self._backend = backend
        self._viewer = viewer
        self._metrics = metrics
        self._version = ""
        self.heard_at = -1e9  # time.monotonic() of the last sign that the picture is current

    async def run(self) -> None:
        """Until it is cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                if not self._version:
                    await self._list()
                began = time.monotonic()
                await self._watch()
                if time.monotonic() - began < _FIRST_PAUSE:
                    await asyncio.sleep(_FIRST_PAUSE)  # something between us and the API server ends watches
                pause = _FIRST_PAUSE
            except ExpiredError:
                logger.info("the watch fell behind: listing all pods anew")
                self._version = ""
            except KubeError as error:
                logger.warning("no view of the pods, next try in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _list(self) -> None:
        pods, version = await self._backend.list_all()
        self._metrics.relists.inc()
        self._viewer.listed(pods, version)
        self._version = version
        self._heard()

    async def _watch(self) -> None:
        async for kind, item in self._backend.watch(self._version):
            if kind == "DELETED":
                self._viewer.gone(item)
            elif kind != "BOOKMARK":
                self._viewer.seen(item)
            self._version = str(item["metadata"].get("resourceVersion") or self._version)
            self._heard()
        self._heard()

    def _heard(self) -> None:
        self.heard_at = time.monotonic()
