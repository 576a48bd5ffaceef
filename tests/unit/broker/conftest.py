"""A broker, a cluster without nodes, and a client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from gymtrain_api.sandboxes import SandboxBackend, SandboxState
from gymtrain_api.spec import Sandboxes
from gymtrain_broker.backends.agent_sandboxes import AgentSandboxBackend
from gymtrain_broker.backends.backend import Backend, PodBackend
from gymtrain_broker.main import BrokerProcess
from gymtrain_broker.metrics import Metrics
from gymtrain_broker.settings import Rhythm, Settings
from gymtrain_broker.throttled_client import ThrottledClient
from gymtrain_kube.access import Access
from tests.support.fake_agent_sandbox import FakeAgentSandbox
from tests.support.fake_pods import FakeCluster

TOKEN = "run-token"
RHYTHM = Rhythm(pause=0.02, round=0.05, probe_first=0.01, probe_most=0.02, reset=8.0, grace=0.3, remembered=60.0)


def settings(rhythm: Rhythm = RHYTHM, daemon_port: int = 8787, kept_out: tuple[str, ...] = (), **spec: Any) -> Settings:
    """Settings by the spec's wire names."""
    return Settings(
        run="run",
        namespace="ns",
        uid="run-uid",
        spec=Sandboxes.model_validate(spec),
        run_token=TOKEN,
        token_secret="run-broker-abc",
        daemon_port=daemon_port,
        rhythm=rhythm,
        kept_out=kept_out,
    )


@dataclass
class Bench:
    """One broker process."""

    process: BrokerProcess
    metrics: Metrics
    url: str
    http: aiohttp.ClientSession
    cluster: FakeCluster
    stop: Callable[[], Awaitable[None]]
    opened: list[asyncio.Task[Any]] = field(default_factory=list)

    async def call(self, method: str, path: str, body: Any = None, token: str = TOKEN) -> tuple[int, Any]:
        """Status and document of an answer."""
        headers = {"Authorization": f"Bearer {token}"}
        async with self.http.request(method, self.url + path, json=body, headers=headers) as answer:
            text = await answer.text()
            return answer.status, await answer.json(content_type=None) if text.startswith(("{", "[")) else text

    async def ask(self, image: str = "task:1", wait: float = 5, **more: Any) -> tuple[int, Any]:
        """POST /v1/sandboxes."""
        return await self.call("POST", f"/v1/sandboxes?wait={wait}", {"image": image, **more})

    async def get(self, id_: str, wait: float = 0) -> Any:
        """The sandbox as it is now."""
        return (await self.call("GET", f"/v1/sandboxes/{id_}?wait={wait}"))[1]

    async def close(self, id_: str) -> int:
        """DELETE."""
        return (await self.call("DELETE", f"/v1/sandboxes/{id_}"))[0]

    async def until(self, met: Callable[[], object]) -> None:
        """Waits for the background to do something."""
        async with asyncio.timeout(10):
            while not met():  # noqa: ASYNC110  the broker has no event to wait for
                await asyncio.sleep(0.005)

    async def until_state(self, id_: str, state: SandboxState) -> Any:
        """Waits for a sandbox to come to a state."""
        await self.until(lambda: self.process.broker.find(id_).state is state)
        return await self.get(id_)

    def free_ready(self) -> list[str]:
        """Pods that can be leased at once."""
        state = self.process.controller.state
        return [pod.name for pod in state.pods.values() if state.is_free(pod) and state.is_ready(pod)]

    def value(self, name: str, **labels: str) -> float:
        """A metric."""
        return self.metrics.registry.get_sample_value(f"gymtrain_broker_{name}", labels) or 0.0


type Start = Callable[..., Awaitable[Bench]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests run with each backend that their mark, or else their module's, names."""
    if "backend" in metafunc.fixturenames and (mark := metafunc.definition.get_closest_marker("backend")):
        metafunc.parametrize("backend", mark.args)


@pytest.fixture
def backend() -> str:
    """How sandboxes are made."""
    return "Pod"


@pytest.fixture
async def cluster(backend: str) -> AsyncIterator[FakeCluster]:
    """A cluster without nodes."""
    fake = await (FakeAgentSandbox() if backend == "AgentSandbox" else FakeCluster()).start()
    yield fake
    await fake.stop()


@pytest.fixture
async def start(cluster: FakeCluster, backend: SandboxBackend) -> AsyncIterator[Start]:
    """Starts a broker; settings by the spec's wire names."""
    benches: list[Bench] = []

    async def begin(rhythm: Rhythm = RHYTHM, synced: bool = True, **spec: Any) -> Bench:
        config = replace(settings(rhythm, **spec), daemon_port=cluster.daemon_port, backend=backend)
        metrics = Metrics()
        kube = ThrottledClient(Access(cluster.url), metrics)
        api: Backend = AgentSandboxBackend(kube, config) if backend == "AgentSandbox" else PodBackend(kube, config)
        http = aiohttp.ClientSession()
        client = aiohttp.ClientSession()
        process = BrokerProcess(config, api, http, metrics)
        server = TestServer(process.api.app(), host="127.0.0.1")
        await server.start_server(shutdown_timeout=0.2)
        process.start()
        stopped = False

        async def stop() -> None:
            nonlocal stopped
            if stopped:
                return
            stopped = True
            await client.close()
            process.controller.end_waits()
            await server.close()
            await process.stop()
            await api.close()
            await http.close()

        bench = Bench(process, metrics, f"http://127.0.0.1:{server.port}", client, cluster, stop)
        benches.append(bench)
        if synced:
            await bench.until(process.controller.synced.is_set)
        return bench

    yield begin
    for bench in benches:
        for task in bench.opened:
            task.cancel()
        await bench.stop()
