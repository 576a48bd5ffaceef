"""Whether the operator is well: /healthz and /readyz, and /metrics beside them.

They are answered in a thread of their own, since the event loop that they are about may be busy, or hang. On a node
whose cores are all taken a loop may stand still for a minute though nothing is wrong with it, and a restart makes it
worse: it begins with the imports. So silence of the loop isn't counted in seconds of the clock, but in seconds of CPU
that it had since its last heartbeat, or could have had and didn't want:

    burning     the process used CPU all the time, and the loop didn't come round
    idle        the thread wakes up on time, the process uses next to nothing, and the loop waits for something else
    starved     the thread wakes up late, or the process uses all that it is given: only what it used counts
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

MAX_SILENCE_SECONDS = 300.0
"""Without one answer of the API server for this long the process is restarted."""

HUNG_SECONDS = 45.0
"""The longest that one callback of the loop may compute or block. Nothing here takes more than a second or two."""

_SAMPLE_SECONDS = 1.0
_LATE = 1.25  # of a sample's time: who is woken so late wasn't alone on the core
_IDLE = 0.02  # share of a core: the thread's own work


class LoopMonitor:
    """Distinguishes an event loop that hangs from one that gets no CPU.

    `heartbeat` is called in the loop, `sample` about once a second in another thread.

    Attributes:
        granted_seconds: CPU that the loop had since its last heartbeat, or could have had.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._cpu = cpu
        self._heartbeats = 0
        self._counted = 0
        self._at, self._used = clock(), cpu()
        self.granted_seconds = 0.0

    @property
    def hung(self) -> bool:
        """Whether the loop had its chance and made no round."""
        return self.granted_seconds > HUNG_SECONDS

    def heartbeat(self) -> None:
        """Notes that the loop came round."""
        self._heartbeats += 1

    def sample(self) -> None:
        """Counts what the loop had since the sample before."""
        now, used = self._clock(), self._cpu()
        took, got = now - self._at, used - self._used
        self._at, self._used = now, used
        if self._heartbeats != self._counted:
            self._counted, self.granted_seconds = self._heartbeats, 0.0
            return
        idle = took < _SAMPLE_SECONDS * _LATE and got < took * _IDLE
        self.granted_seconds += took if idle else got

    async def send_heartbeats(self) -> None:
        """Sends heartbeats for as long as the loop goes round; to be run in it."""
        while True:
            self.heartbeat()
            await asyncio.sleep(_SAMPLE_SECONDS / 2)

    async def keep_sampling(self) -> None:
        """Takes samples without end; to be run in a loop of another thread."""
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            self.sample()


@dataclass
class Health:
    """How the operator is doing.

    Attributes:
        heard: when the API server last answered (monotonic seconds).
        ready: set once the operator works, or waits as a standby.
        loop: whether its event loop goes round.
    """

    heard: float = field(default_factory=time.monotonic)
    ready: bool = False
    loop: LoopMonitor = field(default_factory=LoopMonitor)

    def hear(self) -> None:
        """Notes that the API server answered."""
        self.heard = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether the API server has been heard lately, and the event loop goes round."""
        return not self.problem

    @property
    def problem(self) -> str:
        """Why the process should be restarted; empty if it shouldn't."""
        if self.loop.hung:
            return f"the event loop hangs: it had {HUNG_SECONDS:.0f} s of CPU, or could have had, and made no round"
        if time.monotonic() - self.heard >= MAX_SILENCE_SECONDS:
            return f"no answer from the API server for {MAX_SILENCE_SECONDS:.0f} s"
        return ""


@contextmanager
def served(health: Health, port: int) -> Iterator[None]:
    """Serves on `port` until the end of the block, from a thread that also watches the event loop.

    Raises:
        OSError: the port can't be bound.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="health", daemon=True)
    thread.start()
    runner = web.AppRunner(_application(health), access_log=None, shutdown_timeout=1.0)
    try:
        asyncio.run_coroutine_threadsafe(_start(runner, port), loop).result()
        sampling = asyncio.run_coroutine_threadsafe(health.loop.keep_sampling(), loop)
        try:
            yield
        finally:
            sampling.cancel()
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _application(health: Health) -> web.Application:
    """Returns the HTTP routes of the operator."""

    async def healthz(_: web.Request) -> web.Response:
        problem = health.problem
        return _answer(not problem, problem)

    async def readyz(_: web.Request) -> web.Response:
        return _answer(health.ready, "starting: is the CRD installed?")

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", scrape)])
    return app


async def _start(runner: web.AppRunner, port: int) -> None:
    await runner.setup()
    await web.TCPSite(runner, port=port).start()


def _answer(good: bool, why_not: str) -> web.Response:
    return web.Response(text="ok\n" if good else f"{why_not}\n", status=200 if good else 503)
