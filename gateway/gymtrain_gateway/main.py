"""Runs one gateway until SIGTERM, and drains it.

Exits with 78 (EX_CONFIG) when run.json can't be used, 1 when the port is taken.
"""

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

import gymtrain_tracing as tracing
from gymtrain_gateway import environment, settings
from gymtrain_gateway.app import CallDrain, Gateway
from gymtrain_gateway.errors import PortError, StartError
from gymtrain_gateway.pods import Pods
from gymtrain_gateway.settings import Settings
from gymtrain_gateway.upstream import Upstream, session

if TYPE_CHECKING:
    from gymtrain_gateway.traces import TraceRelay

logger = logging.getLogger(__name__)
_BACKLOG = 4096  # connections that wait to be taken; the kernel's net.core.somaxconn may allow fewer
_RESERVED_FILES = 128  # open files that are no calls: logs, sockets of probes
_EX_CONFIG = 78


@dataclass(frozen=True)
class ConnectionLimits:
    """Connections that may be open at once, by the open files that the kernel grants."""

    files: int
    upstream: int  # to vLLM pods

    def shortage(self, rollouts: int) -> str | None:
        """What to do if `rollouts` clients and their calls don't fit."""
        needed = rollouts + self.upstream + _RESERVED_FILES
        if needed <= self.files:
            return None
        return (
            f"RLIMIT_NOFILE is {self.files}, but {rollouts} open rollouts and {self.upstream} calls to vLLM need "
            f"{needed}: raise the container runtime's limit of open files (LimitNOFILE), add gateway replicas, or "
            "lower spec.rollout.maxConcurrent"
        )


def raise_open_files() -> int:
    """Takes all open files that the kernel grants this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def connection_limits(files: int, rollouts: int) -> ConnectionLimits:
    """Limits for so many open files: each rollout holds one connection to the gateway and at most one onward."""
    return ConnectionLimits(files=files, upstream=max(16, min(rollouts, (files - _RESERVED_FILES) // 2)))


async def serve(config: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then ends what is in flight.

    Raises:
        PortError: the port can't be bound.
    """
    limits = connection_limits(raise_open_files(), config.rollouts)
    if shortage := limits.shortage(config.rollouts):
        logger.warning(shortage)
    drain = CallDrain()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain.begin)
    # Calls must not keep probes waiting for a connection.
    async with _traces(config) as traces, session(limits.upstream) as http, session(0) as probes:
        pods = Pods(config, probes)
        gateway = Gateway(config, pods, Upstream(http), drain, traces)
        watching = asyncio.create_task(pods.run())
        watching.add_done_callback(lambda task: _stop_if_broken(task, drain))
        runner = web.AppRunner(gateway.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, None, config.port, backlog=_BACKLOG)
            try:
                await site.start()
            except OSError as error:
                raise PortError(f"can't listen on port {config.port}: {error}") from error
            logger.info("listening on port %d, %d open files allowed", config.port, limits.files)
            await drain.wait()
            logger.info("stopping, %d requests in flight", drain.in_flight)
        finally:
            await runner.cleanup()
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


@asynccontextmanager
async def _traces(config: Settings) -> AsyncIterator["TraceRelay | None"]:
    """What takes the run's spans; None, and OpenTelemetry isn't imported, where the run isn't traced."""
    if not os.environ.get(tracing.ENDPOINT):
        yield None
        return
    from gymtrain_gateway import traces

    async with traces.relay(config.namespace, config.rules.run) as relay:
        yield relay


def _stop_if_broken(task: asyncio.Task[None], drain: CallDrain) -> None:
    """Stops the gateway when its check of the pods ends, because a restart is better than outdated knowledge."""
    if not task.cancelled() and task.exception() is not None:
        logger.error("checking the vLLM pods failed", exc_info=task.exception())
        drain.begin()


def main() -> int:
    """Returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(serve(settings.read(environment.run_config())))
    except StartError as error:
        print(f"gymtrain: {error}", file=sys.stderr, flush=True)
        return 1 if isinstance(error, PortError) else _EX_CONFIG
    return 0
