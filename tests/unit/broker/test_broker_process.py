"""`python -m gymtrain_broker` as the container runs it."""

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

from tests.support.fake_pods import FakeCluster
from tests.support.listening import needs_ipv6
from tests.support.specs import smallest_run
from tests.unit.broker.conftest import TOKEN

_ROOT = Path(__file__).parents[3]
_HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@asynccontextmanager
async def _broker(
    folder: Path, cluster: FakeCluster, port: int, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    hosts = {"inference_url": "", "inference_pods_host": "", "trainer_host": ""}
    spec = smallest_run(sandboxes={"maxConcurrent": 1})["spec"]
    (folder / "run.json").write_text(json.dumps({"name": "run", "namespace": "ns", "uid": "u", "spec": spec, **hosts}))
    (folder / "token").write_text(TOKEN)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(_ROOT / part) for part in ("api", "kube", "tracing", "broker")),
        "GYMTRAIN_RUN_CONFIG": str(folder / "run.json"),
        "GYMTRAIN_BROKER_TOKEN_FILE": str(folder / "token"),
        "GYMTRAIN_BROKER_PORT": str(port),
        "GYMTRAIN_API_URL": cluster.url,
        **environment,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gymtrain_broker", env=env, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()  # closes its pipe, too, while there is a loop


async def _until_ready(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(30):
        while True:
            with suppress(aiohttp.ClientError):
                async with http.get(url + "/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)


async def test_it_serves_and_at_sigterm_answers_those_that_wait(tmp_path: Path, cluster: FakeCluster) -> None:
    cluster.starts = False
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    async with _broker(tmp_path, cluster, port) as process, aiohttp.ClientSession(headers=_HEADERS) as http:
        await _until_ready(http, url)
        body = {"image": "task:1", "key": "k"}
        waiting = asyncio.create_task(http.post(f"{url}/v1/sandboxes?wait=60", json=body))
        async with asyncio.timeout(10):
            while not cluster.pods:  # noqa: ASYNC110  the fake has no event to wait for
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            answer = await waiting
            assert (answer.status, (await answer.json())["state"]) == (202, "Starting")
            assert await process.wait() == 0
    assert len(cluster.pods) == 1, "the next broker goes on with it"


@needs_ipv6
async def test_it_answers_at_addresses_of_both_families(tmp_path: Path, cluster: FakeCluster) -> None:
    port = _free_port()
    async with _broker(tmp_path, cluster, port), aiohttp.ClientSession() as http:
        await _until_ready(http, f"http://127.0.0.1:{port}")
        await _until_ready(http, f"http://[::1]:{port}")


async def test_without_its_files_it_ends_with_ex_config(tmp_path: Path, cluster: FakeCluster) -> None:
    async with _broker(tmp_path, cluster, 1, GYMTRAIN_BROKER_TOKEN_FILE=str(tmp_path / "none")) as process:
        async with asyncio.timeout(30):
            _, said = await process.communicate()
    assert process.returncode == 78
    assert "can't read the broker's files" in said.decode()
