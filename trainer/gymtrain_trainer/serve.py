"""The trainer's HTTP port: /healthz, /progress, /metrics, /samples, and the weights for vLLM.

It runs in a thread and event loop of its own: the main thread is inside the framework most of the time, in a sync too.
"""

import asyncio
import threading
from collections.abc import Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from gymtrain_trainer.errors import TrainerError
from gymtrain_trainer.monitoring.metrics import registry
from gymtrain_trainer.progress import KEPT_SAMPLES, ProgressBoard

_START_SECONDS = 30.0
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
    """Serves an application from a daemon thread."""

    def __init__(self, app: web.Application, port: int) -> None:
        self._app = app
        self._port = port
        self._started = threading.Event()
        self._error: OSError | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    def start(self) -> None:
        """Returns once the port is open.

        Raises:
            TrainerError: the port can't be opened.
        """
        self._thread.start()
        self._started.wait(_START_SECONDS)
        if self._error is not None or not self._started.is_set():
            raise TrainerError(f"cannot listen on port {self._port}: {self._error or 'no answer of the thread'}")

    def stop(self) -> None:
        """Ends the thread; requests that take longer than a second are cut."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=_STOP_SECONDS)
        try:
            self._loop.run_until_complete(runner.setup())
            self._loop.run_until_complete(web.TCPSite(runner, "0.0.0.0", self._port).start())  # noqa: S104 - a pod's own port
        except OSError as error:
            self._error = error
            return
        finally:
            self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()
