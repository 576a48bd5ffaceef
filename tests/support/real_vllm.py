"""A real vLLM as our launcher starts it, with the tiny model on the CPU."""

import asyncio
import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gymtrain_trainer.weights import ParityCheck, VllmPod
from gymtrain_trainer.weights.parity.check import LogProbs, ParityCompletion, completions_of, judge
from gymtrain_trainer.weights.pods.client import PodClient
from tests.support.fake_vllm import free_port
from tests.support.specs import smallest_run

ROOT = Path(__file__).parents[2]
START_SECONDS = 420


@dataclass(frozen=True)
class Expected:
    """What a model computes, and the prompts to ask vLLM for."""

    check: ParityCheck
    log_probs: LogProbs


@dataclass
class Server:
    """vLLM as our launcher starts it; with `nodes`, as many processes as it has pods."""

    folder: Path
    port: int
    nodes: int = 1
    process: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def place(self) -> dict[str, str]:
        """Where its pod's files are."""
        return self._place(0)

    def _place(self, index: int) -> dict[str, str]:
        """The same for a pod of a group."""
        found = {
            "GYMTRAIN_RUN_CONFIG": str(self.folder / "run.json"),
            "GYMTRAIN_ROOT": str(self._root(index)),
            "GYMTRAIN_INFERENCE_PORT": str(self.port),
        }
        if self.nodes == 1:
            return found
        return found | {
            "LWS_WORKER_INDEX": str(index),
            "LWS_LEADER_ADDRESS": "localhost",
            "VLLM_HOST_IP": f"127.0.0.{index + 1}",
        }

    def _root(self, index: int) -> Path:
        if index == 0:
            return self.folder
        root = self.folder / f"worker-{index}"
        if not root.exists():
            (root / "scratch").mkdir(parents=True)
            (root / "model").symlink_to(self.folder / "model")
        return root

    def _begin(self, index: int) -> subprocess.Popen[bytes]:
        # Ours first, so that the entry point is found in a checkout as it is in the image.
        path = os.pathsep.join([str(ROOT / "inference"), *filter(None, sys.path)])
        environment = {**os.environ, **self._place(index), "PYTHONPATH": path}
        environment.pop("HOME", None)
        with (self._root(index) / "vllm.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "gymtrain_vllm.serve"],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start(self) -> None:
        """Returns once it is healthy."""
        self.process = self._begin(0)
        self.workers = [self._begin(index) for index in range(1, self.nodes)]
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5)
            except OSError:
                time.sleep(0.5)
            else:
                return
        pytest.fail(f"vLLM did not start: {(self.folder / 'vllm.log').read_text()[-4000:]}")

    def stop(self) -> None:
        """Ends it with all its processes."""
        for process in filter(None, [self.process, *self.workers]):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def engine(self) -> int:
        """Process of the engine."""
        return next(iter(self._children("Engine")))

    def api_servers(self) -> list[int]:
        """Processes that answer calls, where that isn't the first one."""
        return self._children("APIServer")

    def _children(self, kind: str) -> list[int]:
        """Processes whose name has that word."""
        assert self.process is not None
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
                if int(rest.split()[1]) == self.process.pid and kind in name:
                    found.append(int(stat.parent.name))
        assert found, f"vLLM has no process {kind}"
        return found

    def ended(self, seconds: float = 60.0) -> bool:
        """Whether it ends by itself."""
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.poll() is not None

    def complete(self) -> int:
        """Status of a small completion."""
        body = json.dumps({"model": "policy", "prompt": [5, 6], "max_tokens": 2}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(answer.status)

    def ready(self) -> tuple[int, str]:
        """What the readiness probe says."""
        probe = ROOT / "inference" / "gymtrain_vllm" / "ready.py"
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(probe)], env=self.place, capture_output=True, text=True, timeout=30
        )
        return done.returncode, done.stdout.strip()

    def difference(self, expected: Expected, model: str = "policy") -> float:
        """Between its log-probabilities and those expected."""

        async def ask() -> list[ParityCompletion]:
            async with aiohttp.ClientSession() as session:
                client = PodClient(session, VllmPod(f"http://127.0.0.1:{self.port}"))
                return await completions_of(client, expected.check, 120.0, model)

        sampled = asyncio.run(ask())
        asked = [one.completion for one in sampled]
        computed = dict(zip(asked, expected.log_probs(asked), strict=True))
        return judge("vLLM", sampled, computed, expected.check, "float32")


@contextmanager
def serving_tiny_model(
    folder: Path, generation: dict[str, Any] | None = None, *, experts: bool = False, **spec: Any
) -> Iterator[Server]:
    """A server of run `demo`.

    Args:
        folder: of its files.
        generation: adds to generation_config.json.
        experts: a mixture of experts, not a dense model.
        spec: replaces blocks of its spec.
    """
    build = runpy.run_path(str(ROOT / "images" / "model-tiny" / "build.py"))
    tokenizer = build["build_tokenizer"]()
    build["build_mixture" if experts else "build_model"](tokenizer).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    defaults = folder / "model" / "generation_config.json"
    defaults.write_text(json.dumps(json.loads(defaults.read_text()) | (generation or {})))
    (folder / "scratch").mkdir()
    addresses = {"inference_url": "http://x", "inference_pods_host": "x", "trainer_host": "x"}
    run = {"name": "demo", "namespace": "x", **addresses, "spec": smallest_run(**spec)["spec"]}
    (folder / "run.json").write_text(json.dumps(run))
    server = Server(folder, free_port(), nodes=spec.get("inference", {}).get("nodes", 1))
    try:
        server.start()
        yield server
    finally:
        server.stop()
