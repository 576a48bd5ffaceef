"""One `vllm serve` on GPU 0."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",  # of no use to vLLM without
}
"""Variables of all that uses several GPUs: in a virtual machine, a program that uses NVLink multicast can put the
host's GPUs out of service."""

START_SECONDS = 240.0  # the first one of a machine compiles all of vLLM
_MODEL_NAME = "policy"


def end_on_sigterm() -> None:
    """SIGTERM, such as `timeout` sends, ends this process and with it the servers of its `serving` blocks; it would
    else leave them on the GPU."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(
    model: Path,
    log: Path,
    *arguments: str,
    host: str = "127.0.0.1",
    port: int | None = None,
    memory: float = 0.4,
    start_seconds: float = START_SECONDS,
    **environment: str,
) -> Iterator[int]:
    """The port of a server that is up.

    Args:
        model: folder of the model.
        log: file that gets what the server prints.
        arguments: of vLLM, more than those that all servers get.
        host: address to listen on.
        port: to listen on; a free one otherwise.
        memory: share of each GPU's memory that it may use.
        start_seconds: until it has to be up.
        environment: variables of its process, over those that all servers get.

    Raises:
        RuntimeError: it ended or did not come up; with the end of its log.
    """
    port = port or free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), f"--served-model-name={_MODEL_NAME}"),
        *(f"--host={host}", f"--port={port}", "--dtype=bfloat16", "--enforce-eager"),
        *(f"--gpu-memory-utilization={memory}", "--max-model-len=2048", "--logprobs-mode=processed_logprobs"),
        *arguments,
    ]
    settings = {
        "CUDA_VISIBLE_DEVICES": "0",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "INFO",  # TRL sets another one for this process, and so for those that it starts
        "HF_HUB_OFFLINE": "1",
        **NO_MULTICAST,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **settings, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_up(process, f"{host}:{port}", log, start_seconds)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def wait_until_up(process: subprocess.Popen[bytes], address: str, log: Path, seconds: float = START_SECONDS) -> None:
    """Until the server answers; raises RuntimeError with the end of its log where it doesn't come up in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{address}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"vLLM did not come up: {log.read_text(errors='replace')[-3000:]}")
