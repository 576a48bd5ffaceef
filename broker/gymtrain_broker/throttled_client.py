"""The only way from the broker to the API server: a few verbs on the paths of its objects.

Every call has a deadline. Every failure is one of `errors.ClusterError`. Writes that somebody waits for don't queue
behind those that make sandboxes ahead, and those give way to them.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

from gymtrain_broker import environment
from gymtrain_broker.errors import (
    ClusterError,
    LostError,
    MissingError,
    RejectedError,
    StaleError,
    StartError,
    UnreachableError,
)
from gymtrain_broker.metrics import Metrics

type Object = dict[str, Any]

_CALL_SECONDS = 15.0
_WATCH_SECONDS = 60  # then the server ends the watch, and the next one goes on from its place
_SILENCE_SECONDS = 75.0
_TOKEN_SECONDS = 30.0
_PAGE = 500
_URGENT, _BACKGROUND = 64, 8  # writes at once
_SLOW_SECONDS = 0.05  # of a write that somebody waits for
_QUIET_SECONDS = 1.0  # without such a write: nobody to give way to
_LOOK_SECONDS = 0.1  # time passes without a write's end
_STRICT = {"fieldValidation": "Strict"}
# A POST's 409 with another reason is about another object: quotas are counted in one that others write too.
_TAKEN = ("AlreadyExists", "")


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
        """A write that somebody waited for has ended."""
        self._last = self._clock()
        self._slow = self._slow or seconds > _SLOW_SECONDS
        step = self._limit / 2 if seconds > _SLOW_SECONDS else self._limit + 0.25
        self._limit = min(float(self._most), max(1.0, step))

    def allowed(self) -> int:
        """How many may be under way now."""
        self._forget_when_quiet()
        return int(self._limit)

    def pressed(self) -> bool:
        """Whether writes that somebody waits for were slow, and there have been such writes ever since."""
        self._forget_when_quiet()
        return self._slow

    def _forget_when_quiet(self) -> None:
        if self._clock() - self._last > _QUIET_SECONDS:
            self._limit, self._slow = float(self._most), False


class ThrottledClient:
    """Access to the API server. Paths begin with /api or /apis."""

    def __init__(self, http: aiohttp.ClientSession, url: str, metrics: Metrics, token_file: Path | None = None) -> None:
        self._http = http
        self._url = url
        self._metrics = metrics
        self._token_file = token_file
        self._token, self._read_at = "", -_TOKEN_SECONDS
        self._urgent, self._background = asyncio.Semaphore(_URGENT), WriteThrottle(_BACKGROUND)

    @classmethod
    def connect(cls, metrics: Metrics) -> Self:
        """With the pod's service account.

        Raises:
            StartError: there is none.
        """
        url = environment.api_url()
        if not url:
            raise StartError("no API server: run in a pod with a ServiceAccount token, or set GYMTRAIN_API_URL")
        tls: ssl.SSLContext | bool = True
        token_file: Path | None = None
        if url.startswith("https://"):
            try:
                tls = ssl.create_default_context(cafile=str(environment.api_ca_file()))
                token_file = environment.api_token_file()
                token_file.read_text()
            except (OSError, ssl.SSLError) as error:
                raise StartError(
                    f"can't read the ServiceAccount's files: {error}. Set automountServiceAccountToken in the pod"
                ) from error
        # Connections are kept for a while: the first request of a burst doesn't wait for a TLS handshake.
        connector = aiohttp.TCPConnector(limit=_URGENT + _BACKGROUND + 8, ssl=tls, keepalive_timeout=90)
        session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)
        return cls(session, url, metrics, token_file)

    async def close(self) -> None:
        """Ends all connections."""
        await self._http.close()

    def pressed(self) -> bool:
        """Whether writes that somebody waits for are slow at the moment."""
        return self._background.pressed()

    async def list_all(self, path: str, selector: str) -> tuple[list[Object], str]:
        """All objects that a label selector names, and the resourceVersion to watch from."""
        found: list[Object] = []
        params = {"limit": str(_PAGE), "labelSelector": selector}
        while True:
            page = await self._call("GET", path, params=params)
            found += page.get("items") or []
            meta = page.get("metadata") or {}
            if not meta.get("continue"):
                return found, str(meta.get("resourceVersion") or "")
            params["continue"] = meta["continue"]

    async def watch(self, path: str, selector: str, version: str) -> AsyncIterator[tuple[str, Object]]:
        """What changes after `version`: (ADDED, MODIFIED, DELETED or BOOKMARK, object). Ends after a minute.

        Raises:
            StaleError: the API server no longer knows that version.
            UnreachableError: the connection broke, or fell silent.
        """
        params = {
            "watch": "1",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CALL_SECONDS, sock_read=_SILENCE_SECONDS)
        url = self._url + path
        try:
            async with self._http.get(url, params=params, headers=self._headers(), timeout=timeout) as answer:
                if answer.status >= 400:
                    raise _error("GET", path, answer.status, await answer.read())
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        if line:
                            yield _event(line)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise UnreachableError(f"watch: {type(error).__name__}: {error}") from error

    async def get(self, path: str) -> Object:
        """One object."""
        return await self._call("GET", path)

    async def create(self, path: str, manifest: Object, *, urgent: bool) -> Object:
        """Makes an object; LostError where the name is taken, RejectedError where it has a field that no such object
        has: without being told to, the API server drops those of a creation and says nothing."""
        async with self._turn(urgent=urgent):
            return await self._call("POST", path, params=_STRICT, body=compact(manifest))

    async def patch(self, path: str, operations: list[Object]) -> Object:
        """Applies a JSON patch; LostError where one of its tests fails."""
        async with self._turn(urgent=True):
            body = json.dumps(operations, separators=(",", ":")).encode()
            return await self._call("PATCH", path, body=body, kind="application/json-patch+json")

    async def delete(self, path: str, uid: str, *, urgent: bool, foreground: bool = False) -> None:
        """Deletes that very object; one that is gone, or is another by now, is left alone.

        With `foreground` it stays, on its way out, until all that it owns is gone.
        """
        body: Object = {"preconditions": {"uid": uid}} if uid else {}
        if foreground:
            body["propagationPolicy"] = "Foreground"
        async with self._turn(urgent=urgent):
            try:
                await self._call("DELETE", path, body=compact(body))
            except (MissingError, LostError):
                return

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

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        if time.monotonic() - self._read_at > _TOKEN_SECONDS:
            try:
                self._token = self._token_file.read_text().strip()
            except OSError as error:
                raise UnreachableError(f"can't read the ServiceAccount's token: {error}") from error
            self._read_at = time.monotonic()
        return {"Authorization": f"Bearer {self._token}"}

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        kind: str = "application/json",
    ) -> Object:
        headers = self._headers() | ({"Content-Type": kind} if body else {})
        timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
        code = "none"
        try:
            async with self._http.request(
                method, self._url + path, params=params, data=body, headers=headers, timeout=timeout
            ) as answer:
                text = await answer.read()
            code = str(answer.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"{method} {path}: {type(error).__name__}: {error}") from error
        finally:
            self._metrics.api_requests.labels(method, code).inc()
        if answer.status >= 400:
            raise _error(method, path, answer.status, text)
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise UnreachableError(f"{method} {path}: the API server answered no object") from error


def compact(manifest: Object) -> bytes:
    """As it is sent."""
    return json.dumps(manifest, separators=(",", ":")).encode()


def _event(line: bytes) -> tuple[str, Object]:
    event = json.loads(line)
    kind, item = str(event["type"]), dict(event["object"])
    if kind == "ERROR":
        raise _error("GET", "watch", int(item.get("code") or 500), json.dumps(item).encode())
    return kind, item


def _error(method: str, path: str, status: int, body: bytes) -> ClusterError:
    """The domain error of an answer that is none."""
    text, reason = body.decode(errors="replace"), ""
    with suppress(ValueError, AttributeError):
        said = json.loads(text)
        text, reason = str(said.get("message", "")) or text, str(said.get("reason") or "")
    message = text[:2000] or f"{method} {path}: HTTP {status}"
    match status:
        case 404:
            return MissingError(message)
        case 409 if method != "POST" or reason in _TAKEN:
            return LostError(message)
        case 410:
            return StaleError(message)
        case 422 if method == "PATCH":
            return LostError(message)
        case 400 | 422:
            return RejectedError(message, final=True)
        case 403:
            return RejectedError(message, final="exceeded quota" not in message)
        case _:
            return UnreachableError(f"{method} {path}: HTTP {status}: {message}")
