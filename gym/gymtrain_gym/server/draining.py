"""Stopping a server without dropping what it works on.

Upstream's servers cancel requests in flight 0.5 s after SIGTERM. uvicorn's own longer grace would not do
either: it closes the listening socket at once, but an agent answers /run by calling itself, and a resources
server gets a rollout's next tool call as a new request. So after SIGTERM a server keeps accepting and
answering until it has been idle for a while or the deadline is there, and only then shuts down.

Clients are sent away meanwhile: responses carry `Connection: close`, so a new connection is made, which the
Service routes to another pod. Only a server that keeps sessions leaves connections open: the rest of a
session has to reach the same process.
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LIVENESS_PATH = "/"
MIN_SECONDS = 3.0  # endpoints of a Service follow a pod's deletion with a delay
QUIET_SECONDS = 2.0
SPARE_THREADS = 8  # for what else a server does in threads

logger = logging.getLogger("uvicorn.error")


class Drain:
    """What a server has in flight, and whether it may stop.

    Args:
        deadline: seconds after SIGTERM at which the server stops in any case.
        close_connections: ask clients to reconnect while draining.
        clock: seconds, monotonic.
    """

    def __init__(self, deadline: float, close_connections: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.deadline = deadline
        self.close_connections = close_connections
        self.in_flight = 0
        self._clock = clock
        self._began: float | None = None
        self._last_activity = clock()

    @property
    def draining(self) -> bool:
        return self._began is not None

    def begin(self) -> None:
        if self._began is None:
            self._began = self._clock()

    def request_started(self) -> None:
        self.in_flight += 1

    def request_ended(self) -> None:
        self.in_flight -= 1
        self._last_activity = self._clock()

    def over(self) -> bool:
        """Whether the server may stop now. False before SIGTERM."""
        if self._began is None:
            return False
        now = self._clock()
        if now - self._began >= self.deadline:
            return True
        idle = not self.in_flight and now - self._last_activity >= QUIET_SECONDS
        return idle and now - self._began >= MIN_SECONDS


class DrainMiddleware:
    """Counts requests, probes left out, and marks the responses of a server that drains."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == LIVENESS_PATH:
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start" and self._drain.draining and self._drain.close_connections:
                message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
            await send(message)

        self._drain.request_started()
        try:
            await self._app(scope, receive, send_marked)
        finally:
            self._drain.request_ended()


class DrainingServer(uvicorn.Server):  # type: ignore[misc]  # uvicorn is not installed where types are checked
    """uvicorn, whose first SIGTERM begins the drain. A second one, or SIGINT, stops at once."""

    should_exit: bool

    def __init__(
        self, config: uvicorn.Config, drain: Drain, threads: int = 0, on_stop: Callable[[], None] = lambda: None
    ) -> None:
        """
        Args:
            config: uvicorn's.
            drain: says when to stop.
            threads: as many calls may wait in threads at once. Python's default grows with the CPUs only, and agents
                wait for their workers in threads.
            on_stop: called when nothing is waited for any more.
        """
        super().__init__(config)
        self._drain = drain
        self._threads = threads
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._threads > 1:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(self._threads + SPARE_THREADS))
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM and not self._drain.draining:
            self._drain.begin()
            return
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if self._drain.over() and not self.should_exit:
            logger.info("Stopping after the drain, %d requests in flight", self._drain.in_flight)
            self.should_exit = True
        return bool(await super().on_tick(counter))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)
