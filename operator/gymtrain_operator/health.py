"""/metrics, /healthz and /readyz."""

import time
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

MAX_SILENCE_SECONDS = 300.0
"""Without one answer of the API server for this long the process is restarted."""


@dataclass
class Health:
    """How the operator is doing.

    Attributes:
        heard: when the API server last answered (monotonic seconds).
        ready: set once the operator works, or waits as a standby.
    """

    heard: float
    ready: bool = False

    @classmethod
    def fresh(cls) -> "Health":
        """At the start."""
        return cls(heard=time.monotonic())

    def hear(self) -> None:
        """The API server answered."""
        self.heard = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether the API server has been heard lately."""
        return time.monotonic() - self.heard < MAX_SILENCE_SECONDS


def application(health: Health) -> web.Application:
    """The HTTP routes of the operator."""

    async def healthz(_: web.Request) -> web.Response:
        return _answer(health.alive, f"no answer from the API server for {MAX_SILENCE_SECONDS:.0f} s")

    async def readyz(_: web.Request) -> web.Response:
        return _answer(health.ready, "starting: is the CRD installed?")

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", scrape)])
    return app


def _answer(good: bool, why_not: str) -> web.Response:
    return web.Response(text="ok\n" if good else f"{why_not}\n", status=200 if good else 503)
