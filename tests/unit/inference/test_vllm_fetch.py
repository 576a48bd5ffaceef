"""Fetching weights: all verified, or nothing."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from aiohttp import web
from blake3 import blake3

from gymtrain_api.manifest import MANIFEST_FILE, PullUpdate, WeightEnd, WeightHead, WeightPart
from gymtrain_vllm.errors import FetchError
from gymtrain_vllm.fetch import discard, fetch
from gymtrain_vllm.file_cache import sweep
from tests.support.fake_vllm import free_port, serving


class Source:
    """What the trainer would serve."""

    def __init__(self) -> None:
        self.port = free_port()
        self.files = {f"{number}.safetensors": bytes([number]) * 1000 for number in range(6)}
        self.served = dict(self.files)
        self.part_bytes = 400
        self.kept: set[str] = set()  # files that later versions name again
        self.fail_first = 0
        self.slow = 0.0
        self.cut = 0  # so many lines are missing at the end of the manifest
        self.between: Callable[[int], Awaitable[None]] | None = None  # before each part is announced
        self.requests: list[str] = []

    def update(self, version: str = "demo:0:1", seconds: float = 5.0) -> PullUpdate:
        url = f"http://127.0.0.1:{self.port}/weights/1/{MANIFEST_FILE}"
        return PullUpdate(manifest_url=url, version=version, timeout_seconds=seconds)

    def parts(self) -> list[WeightPart]:
        return [
            WeightPart(
                name=name,
                size=len(content),
                offset=offset,
                bytes=len(piece := content[offset : offset + self.part_bytes]),
                blake3=blake3(piece).hexdigest(),
                kept=name in self.kept,
            )
            for name, content in self.files.items()
            for offset in range(0, len(content), self.part_bytes)
        ]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self.requests.append(name)
        if name == MANIFEST_FILE:
            return await self.manifest(request)
        await asyncio.sleep(self.slow)
        if self.fail_first:
            self.fail_first -= 1
            return web.Response(status=503)
        asked = request.http_range
        status = 200 if asked.start is None else 206
        return web.Response(status=status, body=self.served[name][asked.start : asked.stop])

    async def manifest(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        parts = self.parts()
        lines = [WeightHead(version="demo:0:1", bytes=6000), *parts, WeightEnd(parts=len(parts))]
        for number, line in enumerate(lines[: len(lines) - self.cut]):
            if self.between is not None:
                await self.between(number)
            await response.write(line.line())
        return response


@pytest.fixture
async def source(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Source]:
    monkeypatch.setattr("gymtrain_vllm.download.time.sleep", lambda _: None)
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
    parts = [part.name for part in source.parts()]
    assert sorted(name for name in source.requests if name != MANIFEST_FILE) == parts


async def test_a_file_that_fails_once_is_fetched_again(source: Source, tmp_path: Path) -> None:
    source.fail_first = 2
    files = await asyncio.to_thread(fetch, source.update(), tmp_path)
    assert len(files) == 6


@pytest.mark.parametrize(
    ("content", "message"), [(b"\x03" * 999 + b"!", "blake3 is"), (b"short", "bytes came, the manifest says [24]00")]
)
async def test_a_damaged_file_is_refused(source: Source, tmp_path: Path, content: bytes, message: str) -> None:
    source.served["3.safetensors"] = content
    with pytest.raises(FetchError, match=message):
        await asyncio.to_thread(fetch, source.update(), tmp_path)


async def test_parts_are_fetched_while_the_manifest_still_grows(source: Source, tmp_path: Path) -> None:
    async def between(line: int) -> None:
        if line == 2:  # the head and one part were sent
            while len(source.requests) < 2:  # noqa: ASYNC110 - the fetch has no event to wait for
                await asyncio.sleep(0.001)

    source.between = between
    async with asyncio.timeout(5):
        files = await asyncio.to_thread(fetch, source.update(), tmp_path)
    assert [file.read_bytes() for file in files] == list(source.files.values())


async def test_a_manifest_that_breaks_off_is_refused(source: Source, tmp_path: Path) -> None:
    source.cut = 1
    with pytest.raises(FetchError, match="breaks off"):
        await asyncio.to_thread(fetch, source.update(), tmp_path)


async def test_a_file_of_which_no_part_was_announced_is_missed(source: Source, tmp_path: Path) -> None:
    parts = source.parts()
    source.parts = lambda: parts[:-1]  # type: ignore[method-assign]
    with pytest.raises(FetchError, match=r"lacks parts of 5\.safetensors"):
        await asyncio.to_thread(fetch, source.update(), tmp_path)


async def test_files_that_were_verified_are_not_fetched_again(source: Source, tmp_path: Path) -> None:
    # The last file: parts start in order, and one that has started is not given up for another's damage.
    source.served["5.safetensors"] = b"\x05" * 999 + b"!"
    with pytest.raises(FetchError):
        await asyncio.to_thread(fetch, source.update(), tmp_path)
    source.served = dict(source.files)
    source.requests.clear()
    await asyncio.to_thread(fetch, source.update(), tmp_path)
    assert set(source.requests) == {MANIFEST_FILE, "5.safetensors"}


async def loaded(source: Source, folder: Path) -> list[bytes]:
    """What a pod that loads a version finds in its files."""
    files = await asyncio.to_thread(fetch, source.update(), folder)
    found = [file.read_bytes() for file in files]
    discard(files)
    return found


def held(folder: Path) -> list[Path]:
    """Weights that a pod has on its disk."""
    return list(folder.rglob("*.safetensors"))


async def test_files_that_stay_are_fetched_once(source: Source, tmp_path: Path) -> None:
    source.kept = {"1.safetensors", "4.safetensors"}
    await loaded(source, tmp_path)
    source.files["0.safetensors"] = source.served["0.safetensors"] = b"other"
    source.requests.clear()
    assert await loaded(source, tmp_path) == list(source.files.values())
    assert set(source.requests) == source.files.keys() - source.kept | {MANIFEST_FILE}


async def test_a_file_that_stays_and_is_another_one_is_refused_and_then_fetched(source: Source, tmp_path: Path) -> None:
    source.kept = {"1.safetensors", "4.safetensors"}
    await loaded(source, tmp_path)
    for name in source.kept:
        source.files[name] = source.served[name] = b"o" * 1000
    with pytest.raises(FetchError, match="another file"):
        await loaded(source, tmp_path)
    assert await loaded(source, tmp_path) == list(source.files.values())


async def test_what_no_version_names_any_more_is_removed(source: Source, tmp_path: Path) -> None:
    source.kept = {"1.safetensors", "4.safetensors"}
    await loaded(source, tmp_path)
    del source.files["4.safetensors"]
    await loaded(source, tmp_path)
    assert [path.name for path in held(tmp_path)] == ["1.safetensors"]


async def test_without_room_nothing_is_kept(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.kept = {"1.safetensors"}
    with monkeypatch.context() as patch:
        usage = shutil.disk_usage(tmp_path)._replace(free=6999)  # a version and the file need 7000
        patch.setattr("gymtrain_vllm.file_cache.shutil.disk_usage", lambda _: usage)
        await loaded(source, tmp_path)
    source.requests.clear()
    assert await loaded(source, tmp_path) == list(source.files.values())
    assert "1.safetensors" in source.requests


async def test_a_file_that_was_cut_off_is_not_taken_for_whole(source: Source, tmp_path: Path) -> None:
    source.kept = {"1.safetensors"}
    await loaded(source, tmp_path)
    (kept,) = held(tmp_path)
    kept.write_bytes(b"cut off")
    assert await loaded(source, tmp_path) == list(source.files.values())


@pytest.mark.parametrize(("version", "left"), [("", False), ("demo:0:7", True), ("demo:1:1", False)])
async def test_another_attempt_and_a_new_start_forget_what_stayed(
    source: Source, tmp_path: Path, version: str, left: bool
) -> None:
    source.kept = {"1.safetensors"}
    await loaded(source, tmp_path)
    sweep(tmp_path, but=version)
    assert bool(held(tmp_path)) is left


async def test_a_fetch_can_be_given_up(source: Source, tmp_path: Path) -> None:
    stop = Event()

    async def between(line: int) -> None:
        if line == 1:
            stop.set()

    source.between = between
    with pytest.raises(FetchError, match="given up"):
        await asyncio.to_thread(fetch, source.update(), tmp_path, stop)


async def test_another_version_than_asked_for_is_refused(source: Source, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="holds version demo:0:1, asked for demo:0:2"):
        await asyncio.to_thread(fetch, source.update("demo:0:2"), tmp_path)


async def test_a_trainer_that_is_too_slow_ends_at_the_deadline(source: Source, tmp_path: Path) -> None:
    source.slow = 30.0
    with pytest.raises(FetchError):
        await asyncio.wait_for(asyncio.to_thread(fetch, source.update(seconds=0.5), tmp_path), 10)


async def test_a_trainer_that_is_gone_is_an_error(tmp_path: Path) -> None:
    update = PullUpdate(manifest_url=f"http://127.0.0.1:{free_port()}/m", version="v", timeout_seconds=2)
    with pytest.raises(FetchError, match="refused"):
        await asyncio.to_thread(fetch, update, tmp_path)


async def test_what_is_no_manifest_is_refused(source: Source, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{source.port}/weights/1/0.safetensors"
    with pytest.raises(FetchError, match="isn't a weight manifest"):
        await asyncio.to_thread(fetch, PullUpdate(manifest_url=url, version="v", timeout_seconds=2), tmp_path)


async def test_discarded_weights_leave_nothing(source: Source, tmp_path: Path) -> None:
    files = await asyncio.to_thread(fetch, source.update(), tmp_path)
    discard(files)
    assert not files[0].parent.exists()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", ".hidden", "a/b"])
def test_a_manifest_cannot_name_files_elsewhere(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        WeightPart(name=name, size=1, offset=0, bytes=1, blake3="0" * 64)
