"""The servers under test as processes on the loopback: vLLM, the gateway in front of it, NeMo Gym's servers.

vLLM and NeMo Gym can't share an environment, so each has a Python of its own.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from gymtrain_api.wiring import RunConfig
from tests.support.gym_cluster import GymCluster, free_port, model_server, resources_server, simple_agent
from tests.support.specs import smallest_run

ROOT = Path(__file__).resolve().parents[3]
TEMPLATES = ROOT / "tests" / "exactness" / "templates"
CONTEXT = 16384
START_SECONDS = 900  # a dozen servers on two cores, with other work beside them
_VOCABULARY = 4096


class StartError(Exception):
    """A server did not start; the message has the end of its log."""


@dataclass(frozen=True)
class Template:
    """A chat template, and whether the model thinks before it answers; if so, vLLM has a reasoning parser."""

    name: str
    thinks: bool

    @property
    def parsers(self) -> str:
        """As the report names them."""
        return "hermes, qwen3" if self.thinks else "hermes"

    def arguments(self) -> list[str]:
        """Of vllm serve."""
        arguments = [f"--chat-template={TEMPLATES / self.name}.jinja", "--enable-auto-tool-choice"]
        arguments += ["--tool-call-parser=hermes", f"--max-model-len={CONTEXT}", "--max-num-seqs=32"]
        if self.thinks:
            # The grammar holds for the thoughts too: a model without skill would never end them.
            arguments += ["--reasoning-parser=qwen3", '--structured-outputs-config={"enable_in_reasoning": true}']
        return arguments


@dataclass(frozen=True)
class Pythons:
    """Interpreters, and where NeMo Gym's servers come from."""

    vllm: Path
    gym: Path
    gym_checkout: Path | None = None  # None: the release that `gym` has installed

    def gym_path(self) -> str:
        """PYTHONPATH of Gym servers."""
        checkout = [self.gym_checkout] if self.gym_checkout else []
        return os.pathsep.join(map(str, [*checkout, ROOT / "api", ROOT / "gym"]))

    def gym_root(self) -> Path:
        """The folder above NeMo Gym's servers."""
        if self.gym_checkout:
            return self.gym_checkout
        code = "import nemo_gym; print(nemo_gym.PARENT_DIR)"
        done = subprocess.run([self.gym, "-c", code], check=True, capture_output=True, text=True, timeout=120)
        return Path(done.stdout.split()[-1])


def build_model(pythons: Pythons, folder: Path, texts: Sequence[str]) -> Path:
    """A random model whose tokenizer has learnt from `texts`."""
    words, model = folder / "texts.json", folder / "model"
    words.write_text(json.dumps(texts))
    command: list[str | Path] = [pythons.vllm, "-m", "tests.exactness.model", model, "--texts", words]
    command += [f"--vocabulary={_VOCABULARY}", f"--context={CONTEXT}"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=300)
    return model


@dataclass(frozen=True)
class Serving:
    """A vLLM server and a gateway in front of it."""

    vllm: str
    gateway: str


@contextmanager
def serving(pythons: Pythons, folder: Path, model: Path, template: Template) -> Iterator[Serving]:
    """Both run inside of the block.

    Raises:
        StartError: one of them doesn't come up.
    """
    folder.mkdir()
    (folder / "scratch").mkdir()
    (folder / "model").symlink_to(model)
    spec = smallest_run(inference={"args": template.arguments()}, weightSync={"transport": "None"})["spec"]
    addresses = {"inference_url": "http://x", "inference_pods_host": "127.0.0.1", "trainer_host": "127.0.0.1"}
    run = RunConfig.model_validate({"name": "demo", "namespace": "x", **addresses, "spec": spec})
    (folder / "run.json").write_text(run.model_dump_json(by_alias=True))
    port, gateway_port = free_port(), free_port()
    environment = {
        "GYMTRAIN_RUN_CONFIG": str(folder / "run.json"),
        "GYMTRAIN_ROOT": str(folder),
        "GYMTRAIN_INFERENCE_PORT": str(port),
        "GYMTRAIN_GATEWAY_PORT": str(gateway_port),
    }
    vllm = _start(pythons.vllm, "gymtrain_vllm.serve", "inference", folder / "vllm.log", environment)
    gateway = _start(Path(sys.executable), "gymtrain_gateway", "gateway", folder / "gateway.log", environment)
    try:
        servers = Serving(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{gateway_port}")
        asyncio.run(_answers(servers.vllm + "/health", vllm, folder / "vllm.log"))
        asyncio.run(_answers(servers.gateway + "/ready", gateway, folder / "gateway.log"))
        yield servers
    finally:
        _stop(gateway)
        _stop(vllm)


@contextmanager
def gym_servers(pythons: Pythons, folder: Path, config: dict[str, Any]) -> Iterator[GymCluster]:
    """All servers of `config`, each started by our launcher."""
    folder.mkdir()
    cluster = GymCluster(
        folder, {"head_server": {}, "dry_run": False, **config}, python=str(pythons.gym), python_path=pythons.gym_path()
    )
    try:
        cluster.start(*config)  # none of these servers asks the head
        asyncio.run(cluster.ready(*config, seconds=START_SECONDS))
        yield cluster
    finally:
        cluster.stop()


def gym_config(environments: Sequence[str], models: Mapping[str, Mapping[str, Any]], max_steps: int) -> dict[str, Any]:
    """A resources server for each environment, a model server for each of `models` (its settings by name), and an
    agent for each pair of both, of the name that `agent_name` gives it."""
    config: dict[str, Any] = {name: resources_server(name) for name in environments}
    for model, settings in models.items():
        config[model] = model_server(**settings)
        reference = {"type": "responses_api_models", "name": model}
        for name in environments:
            config[agent_name(name, model)] = simple_agent(name, model_server=reference, max_steps=max_steps)
    return config


def agent_name(environment: str, model: str) -> str:
    """Of the agent that plays `environment` with model server `model`."""
    return f"{environment}_with_{model}"


def _start(python: Path, module: str, part: str, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # Ours first, so that vLLM's plugin is found in a checkout as it is in the image.
    path = os.pathsep.join(str(ROOT / folder) for folder in (part, "api"))
    inherited = {name: value for name, value in os.environ.items() if name != "HOME"}
    with log.open("wb") as output:
        return subprocess.Popen(
            [python, "-m", module],
            env={**inherited, **environment, "PYTHONPATH": path},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


async def _answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with http.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.5)
    raise StartError(f"{url} did not answer within {START_SECONDS} s: {_end(log)}")


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]
