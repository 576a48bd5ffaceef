"""The trainer's HTTP port: /healthz, /progress, /metrics, /samples, and the weights for vLLM.

It runs in threads with event loops of their own: the main thread is inside the framework most of the time, in a sync
too. They are several, because one thread sends files more slowly than pods take them.
"""

import asyncio
import itertools
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Self

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from gymtrain_trainer.cpus import usable_cpus
from gymtrain_trainer.errors import TrainerError
from gymtrain_trainer.monitoring.metrics import registry
from gymtrain_trainer.progress import KEPT_SAMPLES, ProgressBoard

log = logging.getLogger(__name__)

_MOST_THREADS = 4  # enough for 100 Gbit/s; 8 connections of a pod are shared out evenly
_BACKLOG = 1024  # connections that wait: many pods ask for weights at once
_START_SECONDS = 30.0
_AGAIN_SECONDS = 0.5
_STOP_SECONDS = 1.0  # for requests in flight


def make_app(board: ProgressBoard, routes: Sequence[web.AbstractRouteDef] = ()) -> web.Application:
    """The application; `routes` are those of the weight store."""
    metrics = registry(board)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def progress(_: web.Request) -> web.Response:
        return web.json_response(text=board.snapshot().model_dump_json())

    async def samples(request: web.Request) -> web.Response:
        limit = request.query.get("limit", str(KEPT_SAMPLES))
        if not limit.isdigit():
            raise web.HTTPBadRequest(text=f"limit must be a number, not {limit!r}\n")
        return web.json_response(board.samples(int(limit)))

    async def prometheus(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/progress", progress),
            web.get("/samples", samples),
            web.get("/metrics", prometheus),
            *routes,
        ]
    )
    return app


class HttpServer:
    """Serves an application from daemon threads."""

    def __init__(self, make: Callable[[], web.Application], port: int, threads: int = 1) -> None:
        """
        Args:
            make: the application, once for each thread.
            port: to listen on, at all addresses.
            threads: that share out the connections.
        """
        self._port = port
        self._loops = [_Loop(make) for _ in range(threads)]

    def start(self) -> None:
        """Returns once the port is open.

        Raises:
            TrainerError: the port can't be opened.
        """
        try:
            dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual else socket.AF_INET
            listener = socket.create_server(("", self._port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
        except OSError as error:
            raise TrainerError(f"cannot listen on port {self._port}: {error}") from error
        listener.setblocking(False)
        for loop in self._loops:
            loop.start()
        self._loops[0].hand_out(listener, self._loops)

    def stop(self) -> None:
        """Ends the threads; requests that take longer than a second are cut."""
        for loop in self._loops:
            loop.stop()


class _Loop:
    """One event loop and its thread."""

    def __init__(self, make: Callable[[], web.Application]) -> None:
        self._make = make
        self._loop = asyncio.new_event_loop()
        self._server: web.Server | None = None
        self._handing_out: Future[None] | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Returns once it takes connections.

        Raises:
            TrainerError: it doesn't in time.
        """
        self._thread.start()
        if not self._started.wait(_START_SECONDS) or self._server is None:
            raise TrainerError("the thread of the HTTP server did not start")

    def hand_out(self, listener: socket.socket, loops: Sequence[Self]) -> None:
        """Begins to give each connection to the next of the loops."""

        async def accept() -> None:
            with listener:
                for loop in itertools.cycle(loops):
                    loop.take(await _connection(self._loop, listener))

        self._handing_out = asyncio.run_coroutine_threadsafe(accept(), self._loop)

    def take(self, connection: socket.socket) -> None:
        """Serves one connection. From any thread."""
        assert self._server is not None
        asyncio.run_coroutine_threadsafe(self._loop.connect_accepted_socket(self._server, connection), self._loop)

    def stop(self) -> None:
        """Ends the thread."""
        if self._handing_out is not None:
            self._handing_out.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(self._make(), access_log=None, shutdown_timeout=_STOP_SECONDS)
        try:
            self._loop.run_until_complete(runner.setup())
            self._server = runner.server
        finally:
            self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()


async def _connection(loop: asyncio.AbstractEventLoop, listener: socket.socket) -> socket.socket:
    """The next one. Where files are short, some connection ends soon."""
    while True:
        try:
            return (await loop.sock_accept(listener))[0]
        except OSError as error:
            log.warning("cannot accept a connection: %s", error)
            await asyncio.sleep(_AGAIN_SECONDS)


def sending_threads() -> int:
    """Threads for an application that pods fetch weights from."""
    return max(1, min(_MOST_THREADS, usable_cpus() - 1))
