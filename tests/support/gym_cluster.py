"""Real NeMo Gym servers on this machine: one launcher process each, as one pod each in a cluster."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from gymtrain_gym.config.server_config import SERVER_TYPES
from tests.support.fake_policy import FakePolicy, Reply

START_SECONDS = 300


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class GymCluster:
    """Servers of one config. Their hosts are 127.0.0.1, their ports are free ones.

    Args:
        folder: of config and logs.
        config: the resolved Gym config, without addresses.
        python: with NeMo Gym; this one, with what it can import, if left out.
        python_path: PYTHONPATH for it.
    """

    def __init__(
        self, folder: Path, config: dict[str, Any], python: str = sys.executable, python_path: str | None = None
    ) -> None:
        self._folder = folder
        self._python = python
        self._python_path = _python_path() if python_path is None else python_path
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}
        for name, server in config.items():
            if name == "head_server":
                inner = server
            elif isinstance(server, dict) and any(kind in server for kind in SERVER_TYPES):
                inner = next(iter(next(iter(server.values())).values()))
            else:
                continue
            self.ports[name] = free_port()
            inner.update(host="127.0.0.1", port=self.ports[name])
        self._config_file = folder / "config.yaml"
        self._config_file.write_text(yaml.safe_dump(config))

    def url(self, name: str, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.ports[name]}{path}"

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def start(self, *names: str, **environment: str) -> None:
        for name in names:
            with (self._folder / f"{name}.log").open("wb") as log:
                self._processes[name] = subprocess.Popen(
                    [self._python, "-m", "gymtrain_gym.launcher", "--server", name, "--config", self._config_file],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._folder,
                    env={**os.environ, "PYTHONPATH": self._python_path, "TMPDIR": str(self._folder), **environment},
                )

    async def ready(self, *names: str, seconds: float = START_SECONDS) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(seconds):
            for name in names:
                while not await self._answers(session, name):
                    assert self._processes[name].poll() is None, self.log(name)
                    await asyncio.sleep(0.2)

    async def _answers(self, session: aiohttp.ClientSession, name: str) -> bool:
        try:
            async with session.get(self.url(name)) as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    def terminate(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGTERM)

    async def exit_code(self, name: str, seconds: float) -> int:
        return await asyncio.to_thread(self._processes[name].wait, seconds)

    def stop(self, names: Iterable[str] | None = None) -> None:
        """Kills what still runs."""
        for name in list(self._processes if names is None else names):
            process = self._processes.pop(name)
            process.kill()
            process.wait()


def _python_path() -> str:
    return os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path if folder)


def model_server(base_url: str, **settings: Any) -> dict[str, Any]:
    defaults = {
        "entrypoint": "app.py",
        "base_url": base_url,
        "api_key": "${oc.env:POLICY_API_KEY,dummy}",
        "model": "policy",
        "return_token_id_information": True,
        "uses_reasoning_parser": False,
    }
    return {"responses_api_models": {"vllm_model": {**defaults, **settings}}}


def resources_server(implementation: str) -> dict[str, Any]:
    return {"resources_servers": {implementation: {"entrypoint": "app.py", "domain": "other"}}}


def simple_agent(resources: str, **settings: Any) -> dict[str, Any]:
    references = {
        "resources_server": {"type": "resources_servers", "name": resources},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    return {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", **references, **settings}}}


class PolicyCluster(GymCluster):
    """With a policy that a function plays."""

    policy: FakePolicy

    @classmethod
    @asynccontextmanager
    async def started(
        cls, folder: Path, reply: Reply, config: dict[str, Any], names: Sequence[str]
    ) -> AsyncIterator[Self]:
        """The named servers and `policy_model`, ready; all is stopped at the end."""
        policy = FakePolicy(reply)
        await policy.start()
        common = {"head_server": {}, "dry_run": False, "policy_model": model_server(policy.base_url)}
        cluster = cls(folder, common | config)
        cluster.policy = policy
        try:
            cluster.start("policy_model", *names)
            await cluster.ready("policy_model", *names)
            yield cluster
        finally:
            cluster.stop()
            await policy.stop()
