"""The broker's only access to the API server: a few verbs on the paths of objects.

Writes that somebody waits for don't queue behind those that make sandboxes ahead, and those give way to them: the
longer the former take, the fewer of the latter run at once. On a control plane that has reached its limit, each pod
made ahead costs the claims of that moment several writes more: the scheduler's, the kubelet's, and all their watches.

Every failure is a `KubeError`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Self

from gymtrain_broker import environment
from gymtrain_broker.errors import StartError
from gymtrain_broker.metrics import Metrics
from gymtrain_kube.access import SERVICE_ACCOUNT, Access, url_in_pod, with_service_account
from gymtrain_kube.client import RestClient
from gymtrain_kube.errors import AccessError
from gymtrain_kube.objects import Object

_URGENT, _BACKGROUND = 64, 8  # writes at once
_READS = 8
_SLOW_SECONDS = 0.05  # of a write that somebody waits for
_QUIET_SECONDS = 1.0  # without such a write: nobody to give way to
_LOOK_SECONDS = 0.1  # time passes without a write's end
# Pods are listed at each start, thousands of them, and that they come soon matters more than what a page takes.
_PAGE = 500
_ANSWER_BYTES = 64 << 20


class WriteThrottle:
    """Turns for writes in the background. At least one is always under way, so that a pool is never left empty."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._limit = float(most)
        self._slow = False
        self._last = -_QUIET_SECONDS
        self._under_way = 0
        self._queue = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One write, first come, first served."""
        async with self._queue:
            while self._under_way >= self.allowed():
                self._freed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._freed.wait()
            self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._freed.set()

    def urgent_took(self, seconds: float) -> None:
        """Notes how long an urgent write took."""
        self._last = self._clock()
        self._slow = self._slow or seconds > _SLOW_SECONDS
        step = self._limit / 2 if seconds > _SLOW_SECONDS else self._limit + 0.25
        self._limit = min(float(self._most), max(1.0, step))

    def allowed(self) -> int:
        """How many may be under way now."""
        self._forget_when_quiet()
        return int(self._limit)

    def pressed(self) -> bool:
        """Whether urgent writes were slow recently."""
        self._forget_when_quiet()
        return self._slow

    def _forget_when_quiet(self) -> None:
        if self._clock() - self._last > _QUIET_SECONDS:
            self._limit, self._slow = float(self._most), False


class ThrottledClient:
    """Access to the API server. Paths begin with /api or /apis."""

    def __init__(self, access: Access, metrics: Metrics) -> None:
        def count(method: str, status: int | None, seconds: float) -> None:
            metrics.api_requests.labels(method, str(status or "none")).inc()

        self._rest = RestClient(
            access, connections=_URGENT + _BACKGROUND + _READS, answer_bytes=_ANSWER_BYTES, on_call=count
        )
        self._urgent, self._background = asyncio.Semaphore(_URGENT), WriteThrottle(_BACKGROUND)

    @classmethod
    def connect(cls, metrics: Metrics) -> Self:
        """With the pod's service account.

        Raises:
            StartError: there is none.
        """
        url = environment.api_url() or url_in_pod()
        if not url:
            raise StartError("no API server: run in a pod with a ServiceAccount token, or set GYMTRAIN_API_URL")
        if not url.startswith("https://"):
            return cls(Access(url), metrics)
        token = environment.api_token_file() or SERVICE_ACCOUNT / "token"
        ca = environment.api_ca_file() or SERVICE_ACCOUNT / "ca.crt"
        try:
            access = with_service_account(url, token, ca)
        except AccessError as error:
            raise StartError(f"{error}. Set automountServiceAccountToken in the pod") from error
        return cls(access, metrics)

    async def close(self) -> None:
        """Ends all connections."""
        await self._rest.close()

    def pressed(self) -> bool:
        """Whether urgent writes are slow at the moment."""
        return self._background.pressed()

    async def list_all(self, path: str, selector: str) -> tuple[list[Object], str]:
        """All objects that a label selector names, and the resourceVersion to watch from."""
        return await self._rest.list_all(path, selector, page=_PAGE)

    def watch(self, path: str, selector: str, version: str) -> AsyncIterator[tuple[str, Object]]:
        """What changes after `version`, as `RestClient.watch` has it."""
        return self._rest.watch(path, selector, version)

    async def get(self, path: str) -> Object:
        """One object."""
        return await self._rest.get(path)

    async def create(self, path: str, manifest: Object, *, urgent: bool) -> Object:
        """Makes an object; ConflictError where the name is taken, RejectedError where it has a field that no such
        object has."""
        async with self._turn(urgent=urgent):
            return await self._rest.create(path, manifest)

    async def patch(self, path: str, operations: list[Object]) -> Object:
        """Applies a JSON patch; ConflictError where one of its tests fails."""
        async with self._turn(urgent=True):
            return await self._rest.json_patch(path, operations)

    async def delete(self, path: str, uid: str, *, urgent: bool, foreground: bool = False) -> None:
        """Deletes that very object; one that is gone, or is another by now, is left alone.

        With `foreground` it stays, on its way out, until all that it owns is gone.
        """
        async with self._turn(urgent=urgent):
            await self._rest.delete(path, uid=uid, propagation="Foreground" if foreground else "")

    @asynccontextmanager
    async def _turn(self, *, urgent: bool) -> AsyncIterator[None]:
        """One write."""
        if not urgent:
            async with self._background.turn():
                yield
            return
        async with self._urgent:
            began = time.monotonic()
            try:
                yield
            finally:
                self._background.urgent_took(time.monotonic() - began)
