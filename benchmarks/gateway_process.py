"""A gateway as a process of its own, in front of a server on this machine."""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processes import ended_after

_REPOSITORY = Path(__file__).resolve().parent.parent
_READY_SECONDS = 60.0


def run_json(transport: str, max_in_flight: int, timeout_seconds: int, rollouts: int) -> str:
    """A run.json for a gateway outside a cluster."""
    spec = {
        "model": {"source": "hf://none/none"},
        "gym": {"configPaths": ["none.yaml"]},
        "data": {"train": [{"source": "gym://none.jsonl"}]},
        "weightSync": {"transport": transport},
        "gateway": {"maxInFlight": max_in_flight, "timeoutSeconds": timeout_seconds},
        "rollout": {"maxConcurrent": rollouts},
    }
    hosts = {"inference_url": "", "inference_pods_host": "127.0.0.1", "trainer_host": "127.0.0.1"}
    return json.dumps({"name": "bench", "namespace": "none", "spec": spec, **hosts})


def environment() -> dict[str, str]:
    """Of processes that run the repository's code."""
    path = os.pathsep.join(str(_REPOSITORY / part) for part in ("api", "tracing", "gateway", "trainer", "."))
    return {**os.environ, "PYTHONPATH": path}


@contextmanager
def process(*arguments: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m arguments`, ended with the block."""
    running = subprocess.Popen([sys.executable, "-m", *arguments], env={**environment(), **more}, cwd=_REPOSITORY)
    with ended_after(running, 30):
        yield running


@contextmanager
def gateway(
    port: int, pod_port: int, *, transport: str = "None", rollouts: int = 1024, timeout_seconds: int = 600
) -> Iterator[subprocess.Popen[bytes]]:
    """A gateway on `port` that is ready for calls to the server on `pod_port`."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "run.json"
        config.write_text(run_json(transport, 65536, timeout_seconds, rollouts))
        places = {"GYMTRAIN_RUN_CONFIG": str(config), "GYMTRAIN_GATEWAY_PORT": str(port)}
        places |= {"GYMTRAIN_INFERENCE_PORT": str(pod_port), "GYMTRAIN_TRAINER_PORT": "1"}
        with process("gymtrain_gateway", **places) as running:
            wait_for(f"http://127.0.0.1:{port}/ready")
            yield running


def wait_for(url: str) -> None:
    """Returns when `url` answers 200.

    Raises:
        TimeoutError: it does not.
    """
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310  an address of this machine
                return
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url}: {error}") from error
            time.sleep(0.2)


def resident_kib(pid: int, field: str = "VmRSS") -> int:
    """Memory of a process; VmHWM is its peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise ValueError(f"/proc/{pid}/status has no {field}")
