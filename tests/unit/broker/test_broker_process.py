"""`python -m gymtrain_broker` as the container runs it."""

import asyncio
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp

from tests.support.fake_pods import FakeCluster
from tests.support.listening import needs_ipv6
from tests.support.part_process import part, until_answered, write_run_config
from tests.support.specs import smallest_run
from tests.unit.broker.conftest import TOKEN

_HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def _broker(
    folder: Path, cluster: FakeCluster, port: int, **environment: str
) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    (folder / "token").write_text(TOKEN)
    settings = {
        "GYMTRAIN_RUN_CONFIG": str(write_run_config(folder, smallest_run(sandboxes={"maxConcurrent": 1})["spec"])),
        "GYMTRAIN_BROKER_TOKEN_FILE": str(folder / "token"),
        "GYMTRAIN_BROKER_PORT": str(port),
        "GYMTRAIN_API_URL": cluster.url,
    }
    return part("gymtrain_broker", ("api", "kube", "tracing", "broker"), **settings | environment)


async def test_it_serves_and_at_sigterm_answers_those_that_wait(
    tmp_path: Path, cluster: FakeCluster, unused_tcp_port: int
) -> None:
    cluster.starts = False
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with _broker(tmp_path, cluster, unused_tcp_port) as process, aiohttp.ClientSession(headers=_HEADERS) as http:
        await until_answered(http, url + "/readyz")
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
async def test_it_answers_at_addresses_of_both_families(
    tmp_path: Path, cluster: FakeCluster, unused_tcp_port: int
) -> None:
    async with _broker(tmp_path, cluster, unused_tcp_port), aiohttp.ClientSession() as http:
        await until_answered(http, f"http://127.0.0.1:{unused_tcp_port}/readyz")
        await until_answered(http, f"http://[::1]:{unused_tcp_port}/readyz")


async def test_without_its_files_it_ends_with_ex_config(tmp_path: Path, cluster: FakeCluster) -> None:
    async with _broker(tmp_path, cluster, 1, GYMTRAIN_BROKER_TOKEN_FILE=str(tmp_path / "none")) as process:
        async with asyncio.timeout(30):
            _, said = await process.communicate()
    assert process.returncode == 78
    assert "can't read the broker's files" in said.decode()
