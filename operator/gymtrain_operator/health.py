"""/metrics, /healthz and /readyz, answered in a thread of their own: the event loop that they are about may be busy, or
hang."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from gymtrain_operator.pulse import HUNG_SECONDS, Pulse

MAX_SILENCE_SECONDS = 300.0
"""Without one answer of the API server for this long the process is restarted."""


@dataclass
class Health:
    """How the operator is doing.

    Attributes:
        heard: when the API server last answered (monotonic seconds).
        ready: set once the operator works, or waits as a standby.
        pulse: whether its event loop goes round.
    """

    heard: float
    ready: bool = False
    pulse: Pulse = field(default_factory=Pulse)

    @classmethod
    def fresh(cls) -> "Health":
        """At the start."""
        return cls(heard=time.monotonic())

    def hear(self) -> None:
        """The API server answered."""
        self.heard = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether the API server has been heard lately, and the event loop goes round."""
        return not self.trouble

    @property
    def trouble(self) -> str:
        """Why the process should be restarted; empty where it shouldn't."""
        if self.pulse.hung:
            return f"the event loop hangs: it had {HUNG_SECONDS:.0f} s of CPU, or could have had, and didn't come round"
        if time.monotonic() - self.heard >= MAX_SILENCE_SECONDS:
            return f"no answer from the API server for {MAX_SILENCE_SECONDS:.0f} s"
        return ""


def application(health: Health) -> web.Application:
    """The HTTP routes of the operator."""

    async def healthz(_: web.Request) -> web.Response:
        trouble = health.trouble
        return _answer(not trouble, trouble)

    async def readyz(_: web.Request) -> web.Response:
        return _answer(health.ready, "starting: is the CRD installed?")

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", scrape)])
    return app


@contextmanager
def served(health: Health, port: int) -> Iterator[None]:
    """Answers on `port` until the end of the block, from a thread that also watches the pulse.

    Raises:
        OSError: the port can't be bound.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="health", daemon=True)
    thread.start()
    runner = web.AppRunner(application(health), access_log=None, shutdown_timeout=1.0)
    try:
        asyncio.run_coroutine_threadsafe(_start(runner, port), loop).result()
        ticking = asyncio.run_coroutine_threadsafe(health.pulse.keep_ticking(), loop)
        yield
        ticking.cancel()
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _start(runner: web.AppRunner, port: int) -> None:
    await runner.setup()
    await web.TCPSite(runner, port=port).start()


def _answer(good: bool, why_not: str) -> web.Response:
    return web.Response(text="ok\n" if good else f"{why_not}\n", status=200 if good else 503)
