"""A gateway in front of pods without a model."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from gymtrain_gateway.app import CallDrain, Gateway
from gymtrain_gateway.ledger import LedgerLimits
from gymtrain_gateway.pod_choice import Rules
from gymtrain_gateway.pods import Pods
from gymtrain_gateway.settings import Settings
from gymtrain_gateway.traces import TraceRelay
from gymtrain_gateway.upstream import Upstream, session
from tests.unit.gateway.fake_vllm import FakeVLLM

SETTINGS = Settings(
    pods_host="vllm",
    pods_port=8000,
    trainer_host="trainer",
    trainer_port=8080,
    port=0,
    rules=Rules(run="run", max_staleness=2, synced=True, adapters=False),
    timeout_seconds=5.0,
    max_in_flight=8,
    rollouts=8,
    temperature=0.9,
    ledger=LedgerLimits(calls=1_000_000, seconds=3600.0),
)


@dataclass
class Bench:
    """The gateway and what is around it."""

    pods: Pods
    gateway: Gateway
    drain: CallDrain
    url: str
    http: aiohttp.ClientSession
    known: list[str]  # what DNS says

    async def post(self, path: str, body: object) -> tuple[int, Any, dict[str, str]]:
        """Status, document and headers of an answer."""
        async with self.http.post(self.url + path, json=body) as response:
            return response.status, await response.json(content_type=None), dict(response.headers)

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of an answer."""
        async with self.http.get(self.url + path) as response:
            return response.status, await response.text()

    async def until(self, met: Callable[[], bool]) -> None:
        """Waits for the background to notice something."""
        async with asyncio.timeout(10):
            while not met():  # noqa: ASYNC110  the tracker has no event to wait for
                await asyncio.sleep(0.02)


type Start = Callable[..., Awaitable[Bench]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a gateway over some pods; settings can be replaced by name."""
    cleanups: list[Callable[[], Awaitable[object]]] = []

    async def begin(
        *pods: FakeVLLM,
        trainer: str | None = None,
        ready: bool = True,
        traces: TraceRelay | None = None,
        **changes: Any,
    ) -> Bench:
        known = []
        for pod in pods:
            if pod.server is None:
                await pod.start()
            cleanups.append(pod.stop)
            known.append(pod.url)

        async def find(host: str, port: int) -> list[str] | None:
            return known if host == "vllm" else [trainer] if trainer else []

        http, probes, client = session(100), session(0), aiohttp.ClientSession()
        tracker = Pods(replace(SETTINGS, **changes), probes, find)
        drain = CallDrain(0.01, 1.0)
        gateway = Gateway(replace(SETTINGS, **changes), tracker, Upstream(http), drain, traces)
        server = TestServer(gateway.app(), host="127.0.0.1")
        await server.start_server()
        watching = asyncio.create_task(tracker.run())

        async def stop() -> None:
            await client.close()
            await server.close()
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            await http.close()
            await probes.close()

        cleanups.append(stop)
        bench = Bench(tracker, gateway, drain, f"http://127.0.0.1:{server.port}", client, known)
        if ready:
            await bench.until(lambda: len(tracker.admissible()) == len(pods))
        return bench

    yield begin
    for cleanup in reversed(cleanups):
        await cleanup()
