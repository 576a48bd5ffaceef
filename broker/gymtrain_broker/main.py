"""Runs the broker until SIGTERM.

Nothing has to be saved: what a broker knows stands on the pods. On SIGTERM requests that wait are answered with what
is, writes that have begun are ended, and the next broker goes on.
Exits with 78 (EX_CONFIG) when its files can't be used, 1 when the port is taken.
"""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import aiohttp
from aiohttp import web

import gymtrain_tracing as tracing
from gymtrain_broker import environment, settings
from gymtrain_broker.backends.agent_sandboxes import AgentSandboxBackend
from gymtrain_broker.backends.backend import Backend, PodBackend
from gymtrain_broker.control.broker import Broker
from gymtrain_broker.control.controller import Controller
from gymtrain_broker.control.daemons import Daemons
from gymtrain_broker.errors import PortError, StartError
from gymtrain_broker.http.api import Api
from gymtrain_broker.http.daemon_proxy import DaemonProxy
from gymtrain_broker.metrics import Metrics
from gymtrain_broker.policy.shapes import PodShapes
from gymtrain_broker.policy.state import State
from gymtrain_broker.settings import Settings
from gymtrain_broker.throttled_client import ThrottledClient

logger = logging.getLogger(__name__)

_BACKLOG = 4096
_EX_CONFIG = 78
_SETTLE_SECONDS = 10.0


class BrokerProcess:
    """All parts of one broker, put together."""

    def __init__(self, config: Settings, backend: Backend, http: aiohttp.ClientSession, metrics: Metrics) -> None:
        state, shapes = State(), PodShapes(config)
        metrics.watch(state)
        daemons = Daemons(http, config)
        clock = steady()
        self.controller = Controller(config, state, shapes, backend, daemons, metrics, clock)
        self.broker = Broker(config, shapes, self.controller, daemons, clock)
        proxy = DaemonProxy(self.broker, daemons)
        self.api = Api(self.broker, self.controller, proxy, metrics, config.run_token)
        self.failed = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts the loops."""
        for loop in self.controller.loops():
            task = asyncio.create_task(loop)
            task.add_done_callback(self._ended)
            self._loops.append(task)

    async def stop(self) -> None:
        """Ends the loops, and waits for writes that have begun."""
        for loop in self._loops:
            loop.cancel()
        for loop in self._loops:
            with suppress(asyncio.CancelledError, Exception):
                await loop
        await self.controller.finish_steps(_SETTLE_SECONDS)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Stops the broker when one of its parts ends, because a restart is better than outdated knowledge."""
        if not task.cancelled() and task.exception() is not None:
            logger.error("a part of the broker failed", exc_info=task.exception())
            self.failed.set()


def steady(
    wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """The broker's time: seconds since the epoch, as the clock says now, counted on from here by the monotonic clock.

    Leases stand on pods in seconds since the epoch, so that the next broker understands them; but a clock that somebody
    sets while sandboxes run must not end them all at once, or none of them ever.
    """
    offset = wall() - monotonic()
    return lambda: offset + monotonic()


async def serve(config: Settings) -> bool:
    """Serves until SIGTERM or SIGINT. False where a part broke.

    Raises:
        StartError: there is no access to the cluster, or the port can't be bound.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    metrics = Metrics()
    kube = ThrottledClient.connect(metrics)
    backend: Backend = (
        AgentSandboxBackend(kube, config) if config.backend == "AgentSandbox" else PodBackend(kube, config)
    )
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:
        process = BrokerProcess(config, backend, http, metrics)
        runner = web.AppRunner(
            process.api.app(), handler_cancellation=True, access_log=None, shutdown_timeout=_SETTLE_SECONDS
        )
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, None, config.port, backlog=_BACKLOG).start()
            except OSError as error:
                raise PortError(f"can't listen on port {config.port}: {error}") from error
            process.start()
            if config.backend != "Pod" and any(pool.reuse == "Restart" for pool in config.spec.warm_pools):
                logger.warning("reuse: Restart is ignored: agent-sandbox never restarts a sandbox's container")
            logger.info(
                "listening on port %d for run %s/%s, backend %s",
                config.port,
                config.namespace,
                config.run,
                config.backend,
            )
            waits = [asyncio.create_task(event.wait()) for event in (stop, process.failed)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            logger.info("stopping")
        finally:
            process.controller.end_waits()
            await runner.cleanup()
            await process.stop()
            await backend.close()
    return not process.failed.is_set()


def main() -> int:
    """Runs the broker and returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = settings.read(environment.run_config(), environment.token_file())
        tracing.start()
        return 0 if asyncio.run(serve(config)) else 1
    except StartError as error:
        print(f"gymtrain: {error}", file=sys.stderr, flush=True)
        return 1 if isinstance(error, PortError) else _EX_CONFIG
    finally:
        tracing.stop()
