"""One HTTP call to one vLLM pod, with its deadline."""

import asyncio
import json
import socket
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

import gymtrain_tracing as tracing
from gymtrain_gateway.errors import MissingRouteError, PodFailedError, RefusedError, TooLateError

CONNECT_SECONDS = 30.0  # the pods are looked at all the time: a dead one is known sooner
_SHORT_CALLS = 16  # of one pod and route at once; more would not be faster, and each opens a connection
_KEEP_SECONDS = 3.0  # vLLM closes idle connections after 5 s; a request must not meet that
_TEXT_LIMIT = 2000  # characters of a pod's error kept
_PROBE_SECONDS = 5  # of silence on a connection, and between the probes after it
_PROBES = 3  # without an answer


@dataclass(frozen=True)
class Deadline:
    """The end of the time that one call has: waiting, tries and vLLM's work all happen before it."""

    at: float  # time.monotonic()
    seconds: float  # that the call had at first

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """From now."""
        return cls(time.monotonic() + seconds, seconds)

    @property
    def passed(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - (self.at - self.seconds)

    def left(self) -> float:
        """Seconds left.

        Raises:
            TooLateError: none is.
        """
        seconds = self.at - time.monotonic()
        if seconds <= 0:
            raise TooLateError(f"no answer within {self.seconds:.0f} s (spec.gateway.timeoutSeconds)")
        return seconds


def session(connections: int) -> aiohttp.ClientSession:
    """Connections to pods, kept while they are used."""
    connector = aiohttp.TCPConnector(
        limit=connections, limit_per_host=0, keepalive_timeout=_KEEP_SECONDS, socket_factory=_socket
    )
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that fails if the other end doesn't respond, not even to the kernel's probes.

    A node that is lost ends no connection: its calls would wait for their deadline in place of trying another pod.
    """
    family, kind, protocol, *_ = address
    one = socket.socket(family, kind, protocol)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    # Probes wait while sent bytes are unanswered; this limit is for those.
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _PROBE_SECONDS * (1 + _PROBES))
    return one


class Upstream:
    """JSON calls to pods."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http
        # By pod and route: an answer that is there doesn't wait behind the prompts of rollouts that begin.
        self._short: defaultdict[tuple[str, str], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_SHORT_CALLS)
        )

    async def ask(self, pod: str, path: str, body: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        """The answer to a call without generation. Many at once take turns: no storm of connections hits the pod.

        Raises:
            CallError: as `post`.
        """
        gate = self._short[pod, path]
        try:
            async with asyncio.timeout(deadline.left()):
                await gate.acquire()
        except TimeoutError:
            raise TooLateError(f"POST {pod}{path}: not started within {deadline.seconds:.0f} s") from None
        try:
            return await self.post(pod, path, body, deadline)
        finally:
            gate.release()

    async def post(self, pod: str, path: str, body: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        """The pod's answer.

        Raises:
            RefusedError: vLLM answered 4xx.
            MissingRouteError: vLLM has no such route.
            PodFailedError: the pod can't be reached, broke off, or answered 5xx.
            TooLateError: the deadline passed.
        """
        timeout = aiohttp.ClientTimeout(total=deadline.left(), sock_connect=CONNECT_SECONDS)
        where = f"POST {pod}{path}"
        try:
            async with self.http.post(pod + path, json=body, timeout=timeout, headers=tracing.headers()) as response:
                text = await response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise translated(error, where, deadline) from error
        if response.status >= 400:
            raise refusal(response.status, text, response.content_type, where)
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise PodFailedError("garbled", f"{where}: the answer isn't a JSON object: {error}") from error


def translated(error: Exception, where: str, deadline: Deadline) -> PodFailedError | TooLateError:
    """What an error of the connection means for the call."""
    if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError):
        return TooLateError(f"{where}: no answer within {deadline.seconds:.0f} s (spec.gateway.timeoutSeconds)")
    return PodFailedError("connection", f"{where}: {error or type(error).__name__}")


def refusal(status: int, text: bytes, content_type: str, where: str) -> Exception:
    """The error that stands for an answer with `status`."""
    if status >= 500:
        return PodFailedError("status", f"{where}: {status}: {text.decode(errors='replace')[:_TEXT_LIMIT]}")
    if is_missing_route(status, text):
        return MissingRouteError(
            f"{where}: {status}: exact token ids need vLLM's render, generate and derender routes: start it with "
            "--enable-scale-out (0.30 and later; releases before always serve them)"
        )
    return RefusedError(status, text, content_type)


def is_missing_route(status: int, text: bytes) -> bool:
    """Whether the route, not what was asked of it, is the reason. vLLM answers 404 for unknown models, too."""
    if status in (403, 405):
        return True
    if status != 404:
        return False
    try:
        return "error" not in json.loads(text)
    except (ValueError, TypeError):
        return True
