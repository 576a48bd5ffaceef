"""`python -m gymtrain_gateway` as the container runs it."""

import asyncio
import signal
import socket
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import pytest

from tests.support.listening import needs_ipv6
from tests.support.part_process import part, until_answered, write_run_config
from tests.support.specs import smallest_run


def _gateway(folder: Path, port: int) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    settings = {"GYMTRAIN_RUN_CONFIG": str(folder / "run.json"), "GYMTRAIN_GATEWAY_PORT": str(port)}
    return part("gymtrain_gateway", ("api", "tracing", "gateway"), **settings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What is mounted into the pod of a run whose vLLM and trainer aren't there yet."""
    write_run_config(tmp_path, smallest_run()["spec"], inference_pods_host="localhost", trainer_host="localhost")
    return tmp_path


@needs_ipv6
async def test_it_answers_at_addresses_of_both_families_and_ends_at_sigterm(folder: Path, unused_tcp_port: int) -> None:
    async with _gateway(folder, unused_tcp_port) as process, aiohttp.ClientSession() as http:
        await until_answered(http, f"http://127.0.0.1:{unused_tcp_port}/health")
        await until_answered(http, f"http://[::1]:{unused_tcp_port}/health")
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
