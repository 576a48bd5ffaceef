"""Fetching weights: all verified, or nothing."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from aiohttp import web

from gymtrain_api.manifest import PullUpdate, WeightFile, WeightManifest
from gymtrain_vllm.errors import FetchError
from gymtrain_vllm.fetch import discard, fetch
from tests.support.fake_vllm import free_port, serving


class Source:
    """What the trainer would serve."""

    def __init__(self) -> None:
        self.port = free_port()
        self.files = {f"{number}.safetensors": bytes([number]) * 1000 for number in range(6)}
        self.served = dict(self.files)
        self.fail_first = 0
        self.slow = 0.0
        self.requests: list[str] = []

    def update(self, version: str = "demo:0:1", seconds: float = 5.0) -> PullUpdate:
        url = f"http://127.0.0.1:{self.port}/weights/1/manifest.json"
        return PullUpdate(manifest_url=url, version=version, timeout_seconds=seconds)

    async def answer(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.requests.append(name)
        if name == "manifest.json":
            files = [
                WeightFile(name=name, bytes=len(content), sha256=sha256(content).hexdigest())
                for name, content in self.files.items()
            ]
            return web.Response(text=WeightManifest(version="demo:0:1", files=files).model_dump_json())
        await asyncio.sleep(self.slow)
        if self.fail_first:
            self.fail_first -= 1
            return web.Response(status=503)
        return web.Response(body=self.served[name])


@pytest.fixture
async def source(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Source]:
    monkeypatch.setattr("gymtrain_vllm.fetch.time.sleep", lambda _: None)
    found = Source()
    app = web.Application()
    app.add_routes([web.get("/weights/1/{name}", found.answer)])
    async with serving(app, "127.0.0.1", found.port):
        yield found


async def test_all_files_arrive_in_the_manifests_order(source: Source, tmp_path: Path) -> None:
    files = await asyncio.to_thread(fetch, source.update(), tmp_path)
    assert [file.read_bytes() for file in files] == list(source.files.values())


async def test_workers_of_one_pod_fetch_once(source: Source, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as workers:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(workers, fetch, source.update(), tmp_path) for _ in range(3)))
    assert sorted(name for name in source.requests if name != "manifest.json") == sorted(source.files)


async def test_a_file_that_fails_once_is_fetched_again(source: Source, tmp_path: Path) -> None:
    source.fail_first = 2
    files = await asyncio.to_thread(fetch, source.update(), tmp_path)
    assert len(files) == 6


@pytest.mark.parametrize(
    ("content", "message"), [(b"\x03" * 999 + b"!", "sha256 is"), (b"short", "5 bytes, the manifest says 1000")]
)
async def test_a_damaged_file_is_refused(source: Source, tmp_path: Path, content: bytes, message: str) -> None:
    source.served["3.safetensors"] = content
    with pytest.raises(FetchError, match=message):
        await asyncio.to_thread(fetch, source.update(), tmp_path)


async def test_another_version_than_asked_for_is_refused(source: Source, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="holds version demo:0:1, asked for demo:0:2"):
        await asyncio.to_thread(fetch, source.update("demo:0:2"), tmp_path)


async def test_a_trainer_that_is_too_slow_ends_at_the_deadline(source: Source, tmp_path: Path) -> None:
    source.slow = 30.0
    with pytest.raises(FetchError):
        await asyncio.wait_for(asyncio.to_thread(fetch, source.update(seconds=0.5), tmp_path), 10)


async def test_a_trainer_that_is_gone_is_an_error(tmp_path: Path) -> None:
    update = PullUpdate(manifest_url=f"http://127.0.0.1:{free_port()}/m.json", version="v", timeout_seconds=2)
    with pytest.raises(FetchError, match="refused"):
        await asyncio.to_thread(fetch, update, tmp_path)


async def test_what_is_no_manifest_is_refused(source: Source, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{source.port}/weights/1/0.safetensors"
    with pytest.raises(FetchError, match="is no weight manifest"):
        await asyncio.to_thread(fetch, PullUpdate(manifest_url=url, version="v", timeout_seconds=2), tmp_path)


async def test_discarded_weights_leave_nothing(source: Source, tmp_path: Path) -> None:
    files = await asyncio.to_thread(fetch, source.update(), tmp_path)
    discard(files)
    assert not files[0].parent.exists()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", ".hidden", "a/b"])
def test_a_manifest_cannot_name_files_elsewhere(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        WeightFile(name=name, bytes=1, sha256="0" * 64)
