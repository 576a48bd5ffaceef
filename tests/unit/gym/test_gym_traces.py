"""One rollout as one trace: the trainer's process for rollouts, unmodified NeMo Gym servers under the launcher, the
real gateway and the real broker. Only vLLM is a stand-in, which keeps the `traceparent` that it gets."""

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import gymtrain_tracing as tracing
from gymtrain_gym.server import mini_swe
from gymtrain_tracing import otel
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.rollouts.group import GroupRules
from gymtrain_trainer.rollouts.process.client import RolloutProcess
from gymtrain_trainer.rollouts.runner import RunnerSettings
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from gymtrain_trainer.weights import SyncNumbers
from tests.support.broker import serving
from tests.support.fake_pods import FakeCluster
from tests.support.gym_cluster import GymCluster, free_port, model_server, resources_server, simple_agent
from tests.support.otlp import Receiver, receiving, tree
from tests.support.specs import smallest_run
from tests.unit.broker.conftest import TOKEN, settings
from tests.unit.gateway.fake_vllm import FakeVLLM
from tests.unit.trainer.trainer_groups import Heard, Servers

pytestmark = pytest.mark.gym

# A resources server with a tool that runs in a sandbox.
BOXED = """
from fastapi import FastAPI
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig, BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer,
)
from nemo_gym.sandbox import AsyncSandbox, SandboxSpec


class Boxed(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/run_command")(self.run_command)
        return app

    async def run_command(self) -> dict:
        async with await AsyncSandbox({"gymtrain": {}}, SandboxSpec(image="task:1")).start() as sandbox:
            return {"code": (await sandbox.exec("true")).return_code}

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


if __name__ == "__main__":
    Boxed.run_webserver()
"""
TOOL = {
    "type": "function",
    "name": "run_command",
    "description": "Runs it.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    "strict": True,
}
ROW: dict[str, Any] = {"responses_create_params": {"input": [{"role": "user", "content": "Run it."}], "tools": [TOOL]}}

TRACE = """
gymtrain-trainer: rollout
  gymtrain-trainer: wait for a slot
  gymtrain-trainer: try
    gymtrain-trainer: POST /run
      gymtrain-gym-agent: POST /run
        gymtrain-gym-boxed: POST /seed_session
        gymtrain-gym-agent: POST /v1/responses
          gymtrain-gym-policy_model: POST /v1/responses
            gymtrain-gateway: POST /v1/chat/completions
              gymtrain-gateway: wait for a vLLM pod
              gymtrain-gateway: render
              gymtrain-gateway: generate
              gymtrain-gateway: derender
          gymtrain-gym-boxed: POST /run_command
            gymtrain-gym-boxed: sandbox create
              gymtrain-broker: POST /v1/sandboxes
            gymtrain-gym-boxed: sandbox exec
            gymtrain-gym-boxed: sandbox close
              gymtrain-broker: DELETE /v1/sandboxes/{id}
          gymtrain-gym-policy_model: POST /v1/responses
            gymtrain-gateway: POST /v1/chat/completions
              gymtrain-gateway: wait for a vLLM pod
              gymtrain-gateway: render
              gymtrain-gateway: generate
              gymtrain-gateway: derender
        gymtrain-gym-boxed: POST /verify
""".strip().splitlines()


class Pods(FakeCluster):
    """Daemons whose commands end at once, well."""

    async def _other(self, request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text='{"t": "exit", "code": 0}\n')


def _environment(service: str, endpoint: str, sampler: str = "parentbased_always_off", **more: str) -> dict[str, str]:
    """What the operator gives a pod, see manifests/tracing.py."""
    return {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{endpoint}/v1/traces",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": service,
        "OTEL_TRACES_SAMPLER": sampler,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        **more,
    }


@asynccontextmanager
async def _gateway(folder: Path, vllm: FakeVLLM, receiver: Receiver) -> AsyncIterator[str]:
    """The gateway's own process."""
    hosts = {"inference_url": "", "inference_pods_host": "127.0.0.1", "trainer_host": "127.0.0.1"}
    run = {"name": "run", "namespace": "ns", "spec": smallest_run()["spec"], **hosts}
    (folder / "run.json").write_text(json.dumps(run))
    assert vllm.server is not None
    port = free_port()
    variables = _environment("gymtrain-gateway", receiver.url) | {
        "GYMTRAIN_RUN_CONFIG": str(folder / "run.json"),
        "GYMTRAIN_GATEWAY_PORT": str(port),
        "GYMTRAIN_INFERENCE_PORT": str(vllm.server.port),
        "GYMTRAIN_TRAINER_PORT": str(free_port()),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gymtrain_gateway", env={**os.environ, **variables}
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(60):
            while not await _ready(http, url):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
        yield url
    finally:
        process.terminate()
        await process.wait()


async def _ready(http: aiohttp.ClientSession, url: str) -> bool:
    with suppress(aiohttp.ClientError):
        async with http.get(f"{url}/ready") as answer:
            return answer.status == 200
    return False


@asynccontextmanager
async def _broker(cluster: FakeCluster) -> AsyncIterator[str]:
    """The broker, in this process."""
    config = replace(settings(), daemon_port=cluster.daemon_port)
    async with aiohttp.ClientSession() as http, serving(config, cluster.url, http) as url:
        yield url


async def _rollout(url: str) -> None:
    """One group of one rollout, in the process for rollouts."""
    made = RunnerSettings(
        run="run",
        attempt=1,
        first_number=0,
        rules=GroupRules(1, 1),
        limits=RolloutLimits(8, 60.0, 1),
        sampling=Sampling(1.0, 64),
    )
    numbering = SyncNumbers("run", 1)
    process = RolloutProcess(made, numbering, Servers())
    process.launch()
    async with process.open(Heard()), asyncio.timeout(90):
        numbering.sent("run:1:1")
        process.update_model_version(numbering.model_versions)
        await process.run(Task(7, "agent", url, ROW))


@pytest.fixture
async def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Receiver, FakeVLLM, str]]:
    """All parts of a run, that trace; the agent's URL."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    server = tmp_path / "resources_servers" / "boxed"
    server.mkdir(parents=True)
    (server / "app.py").write_text(BOXED)
    (tmp_path / "token").write_text(TOKEN)
    names = ["policy_model", "boxed", "agent"]
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(receiving())
        vllm, cluster = await FakeVLLM().start(), await Pods().start()
        stack.push_async_callback(vllm.stop)
        stack.push_async_callback(cluster.stop)
        gateway = await stack.enter_async_context(_gateway(tmp_path, vllm, receiver))
        for name, value in _environment("gymtrain-broker", gateway).items():
            monkeypatch.setenv(name, value)
        tracing.start()
        stack.push_async_callback(asyncio.to_thread, tracing.stop)
        broker = await stack.enter_async_context(_broker(cluster))
        config = {
            "head_server": {},
            "dry_run": False,
            "policy_model": model_server(f"{gateway}/v1"),
            "boxed": resources_server("boxed"),
            "agent": simple_agent("boxed"),
        }
        gym = GymCluster(tmp_path, config)
        stack.callback(gym.stop)
        sandboxes = {"GYMTRAIN_BROKER_URL": broker, "GYMTRAIN_BROKER_TOKEN_FILE": str(tmp_path / "token")}
        for name in names:
            gym.start(name, **_environment(f"gymtrain-gym-{name}", gateway, **sandboxes))
        await gym.ready(*names)
        for name, value in _environment("gymtrain-trainer", gateway, "parentbased_traceidratio").items():
            monkeypatch.setenv(name, value)
        yield receiver, vllm, gym.url("agent", "")


async def test_a_rollout_is_one_trace_through_all_parts(
    traced: tuple[Receiver, FakeVLLM, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, vllm, url = traced
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    vllm.answers = deque(["{run_command}", "done"])
    await _rollout(url)
    assert vllm.traceparents["generate"] == "", "of a rollout that isn't traced nobody hears"

    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1")
    vllm.answers = deque(["{run_command}", "done"])
    await _rollout(url)
    spans = await receiver.until(lambda spans: len(spans) >= len(TRACE))
    assert tree(spans) == TRACE

    (root,) = (span for span in spans if not span.parent)
    assert root.attributes == {
        "gymtrain.agent": "agent",
        "gymtrain.group": 7,
        "gymtrain.purpose": "training",
        "gymtrain.weight_version": "run:1:1",
        "gymtrain.reward": 1.0,
        "gymtrain.scored": True,
        "gymtrain.truncated": False,
        "gymtrain.tries": 1,
        "gymtrain.turns": 2,
        "gen_ai.usage.output_tokens": len("{run_command}") + len("done") + 2,
    }
    last = max((span for span in spans if span.name == "generate"), key=lambda span: span.began)
    assert vllm.traceparents["generate"].startswith(f"00-{last.trace}-{last.id}-"), (
        "vLLM's own spans are below `generate`"
    )
    assert {(span.resource["k8s.namespace.name"], span.resource["gymtrain.run"]) for span in spans} == {("ns", "run")}
    assert not [span for span in spans if span.failed]


def test_mini_swe_agents_own_client_names_the_rollout_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    given = {"temperature": 1.0, "extra_headers": {"x-own": "1"}}
    model = SimpleNamespace(config=SimpleNamespace(model_kwargs=given))
    before = tracing.use(otel.to_exporter(InMemorySpanExporter()))
    try:
        with tracing.root("rollout"):
            caller = tracing.headers()
            mini_swe._prepare(lambda model, messages: messages, model, [])
    finally:
        tracing.stop()
        tracing.use(before)
    assert model.config.model_kwargs == {"temperature": 1.0, "extra_headers": {"x-own": "1", **caller}}
    assert given["extra_headers"] == {"x-own": "1"}, "the settings of others stay"
    untraced = SimpleNamespace(config=SimpleNamespace(model_kwargs={}))
    mini_swe._prepare(lambda model, messages: messages, untraced, [])
    assert untraced.config.model_kwargs == {}
