"""`python -m gymtrain_gateway` as the container runs it."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from tests.support.listening import needs_ipv6
from tests.support.specs import smallest_run

_ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def _gateway(folder: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(_ROOT / part) for part in ("api", "tracing", "gateway")),
        "GYMTRAIN_RUN_CONFIG": str(folder / "run.json"),
        "GYMTRAIN_GATEWAY_PORT": str(port),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gymtrain_gateway", env=env, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()  # closes its pipe, too, while there is a loop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What is mounted into the pod of a run whose vLLM and trainer aren't there yet."""
    hosts = {"inference_url": "", "inference_pods_host": "localhost", "trainer_host": "localhost"}
    run = {"name": "run", "namespace": "ns", "uid": "u", "spec": smallest_run()["spec"], **hosts}
    (tmp_path / "run.json").write_text(json.dumps(run))
    return tmp_path


async def _answers(url: str) -> None:
    async with asyncio.timeout(30), aiohttp.ClientSession() as http:
        while True:
            with suppress(aiohttp.ClientError):
                async with http.get(url) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)


@needs_ipv6
async def test_it_answers_at_addresses_of_both_families_and_ends_at_sigterm(folder: Path, unused_tcp_port: int) -> None:
    async with _gateway(folder, unused_tcp_port) as process:
        await _answers(f"http://127.0.0.1:{unused_tcp_port}/health")
        await _answers(f"http://[::1]:{unused_tcp_port}/health")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            _, said = await process.communicate()
    assert (process.returncode, b"stopping, 0 requests in flight" in said) == (0, True), said


async def test_a_port_that_is_taken_is_named_and_tried_again_by_the_kubelet(folder: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        async with _gateway(folder, port) as process, asyncio.timeout(30):
            _, said = await process.communicate()
    assert process.returncode == 1
    assert f"gymtrain: can't listen on port {port}: " in said.decode()


async def test_without_the_runs_settings_it_ends_with_ex_config(tmp_path: Path, unused_tcp_port: int) -> None:
    async with _gateway(tmp_path, unused_tcp_port) as process, asyncio.timeout(30):
        _, said = await process.communicate()
    assert process.returncode == 78
    assert "gymtrain: can't read the run's settings: " in said.decode()
