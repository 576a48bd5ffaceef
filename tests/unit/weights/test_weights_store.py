"""Staged versions on disk, and what of them HTTP gives away."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from blake3 import blake3

from gymtrain_api.manifest import WeightEnd, WeightHead, WeightPart
from gymtrain_trainer.weights import StagingError, WeightStore, weight_routes
from gymtrain_trainer.weights.store.fetches import Fetches
from gymtrain_trainer.weights.store.weight_store import Draft


def add(draft: Draft, name: str = "a.safetensors", content: bytes = b"x") -> WeightPart:
    (draft.folder / name).write_bytes(content)
    digest = blake3(content).hexdigest()
    part = WeightPart(name=name, size=len(content), offset=0, bytes=len(content), blake3=digest)
    draft.manifest.add(part)
    return part


def publish(store: WeightStore, number: int) -> WeightPart:
    draft = store.begin(number, f"demo:0:{number}")
    part = add(draft)
    draft.manifest.end()
    return part


def client_of(store: WeightStore) -> TestClient[web.Request, web.Application]:
    app = web.Application()
    app.add_routes(weight_routes(store))
    return TestClient(TestServer(app))


def test_a_version_that_was_never_begun_has_nothing(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    assert store.manifest("1") is None
    assert store.find("1", "a.safetensors") is None


def test_the_version_before_the_last_is_removed_when_the_next_begins(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    for number in (9, 10):
        publish(store, number)
    store.begin(11, "demo:0:11")
    assert store.find("9", "a.safetensors") is None
    assert store.manifest("9") is None
    assert store.find("10", "a.safetensors") is not None


def test_a_version_that_was_dropped_does_not_count_as_the_last(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    publish(store, 1)
    add(store.begin(2, "demo:0:2"))
    store.drop(2)
    store.begin(3, "demo:0:3")
    assert store.find("1", "a.safetensors") is not None
    assert store.find("2", "a.safetensors") is None


def test_what_an_earlier_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "staged" / "3").mkdir(parents=True)
    WeightStore(tmp_path / "staged")
    assert not (tmp_path / "staged").exists()


def test_a_folder_that_cannot_be_written_is_a_staging_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StagingError, match="cannot make"):
        WeightStore(tmp_path / "file" / "staged").begin(1, "demo:0:1")


@pytest.mark.parametrize(
    "path", ["/weights/1/../../secret", "/weights/1/%2e%2e%2fsecret", "/weights/%2e%2e/secret", "/weights/1/.hidden"]
)
async def test_nothing_outside_the_store_can_be_read(tmp_path: Path, path: str) -> None:
    store = WeightStore(tmp_path / "staged")
    publish(store, 1)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "staged" / "1" / ".hidden").write_text("hidden")
    async with client_of(store) as client:
        assert (await client.get(path)).status == 404


async def test_the_manifest_and_ranges_of_files_are_served(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    draft = store.begin(1, "demo:0:1")
    part = add(draft, content=b"abcdef")
    draft.manifest.end()
    async with client_of(store) as client:
        text = await (await client.get("/weights/1/manifest")).read()
        head = WeightHead(version="demo:0:1", bytes=6)
        assert text == head.line() + part.line() + WeightEnd(parts=1).line()
        answer = await client.get(f"/weights/1/{part.name}", headers={"Range": "bytes=2-4"})
        assert (answer.status, await answer.read()) == (206, b"cde")


async def test_until_all_is_written_the_manifest_says_how_much_is_expected(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    draft = store.begin(1, "demo:0:1", 99)
    add(draft)
    async with client_of(store) as client, asyncio.timeout(60):
        early = await client.get("/weights/1/manifest")
        assert WeightHead.model_validate_json(await early.content.readline()).bytes == 99
        draft.manifest.end()
        late = await client.get("/weights/1/manifest")
        assert WeightHead.model_validate_json(await late.content.readline()).bytes == 1


async def test_a_manifest_is_read_while_it_grows(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    draft = store.begin(1, "demo:0:1")
    async with client_of(store) as client, asyncio.timeout(60):
        answer = await client.get("/weights/1/manifest")
        WeightHead.model_validate_json(await answer.content.readline())
        for name in ("a.safetensors", "b.safetensors"):
            part = await asyncio.to_thread(add, draft, name)
            assert await answer.content.readline() == part.line()
        await asyncio.to_thread(draft.manifest.end)
        assert await answer.content.readline() == WeightEnd(parts=2).line()
        assert await answer.content.readline() == b""


async def test_while_nothing_comes_the_reader_learns_that_the_trainer_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymtrain_trainer.weights.store.weight_store._ALIVE_SECONDS", 0.01)
    store = WeightStore(tmp_path / "staged")
    store.begin(1, "demo:0:1")
    async with client_of(store) as client, asyncio.timeout(60):
        answer = await client.get("/weights/1/manifest")
        await answer.content.readline()
        assert await answer.content.readline() == b"\n"
        store.clear()


async def test_a_version_that_is_withdrawn_ends_without_its_last_line(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    add(store.begin(1, "demo:0:1"))
    async with client_of(store) as client, asyncio.timeout(60):
        answer = await client.get("/weights/1/manifest")
        await answer.content.readline()
        await asyncio.to_thread(store.drop, 1)
        rest = await answer.read()
    assert b"blake3" in rest
    assert b"parts" not in rest


def test_a_version_is_written_into_the_files_of_the_one_before_the_last(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    publish(store, 1)
    found = store.find("1", "a.safetensors")
    assert found is not None
    first = found.stat().st_ino
    publish(store, 2)
    draft = store.begin(3, "demo:0:3")
    assert draft.spare.take(draft.folder / "a.safetensors", 1)
    assert (draft.folder / "a.safetensors").stat().st_ino == first


async def test_a_server_of_several_pods_has_all_when_each_of_them_says_so() -> None:
    fetch = Fetches().begin(pods=2)
    for _ in range(2):  # each worker of the first one
        fetch.end("10.0.0.1")
    assert not await fetch.ends_within(0.1)
    fetch.end("10.0.0.2")
    assert await fetch.ends_within(1)


async def test_a_pod_says_that_it_has_all_under_the_id_that_it_was_given(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    fetch = store.fetches.begin()
    async with client_of(store) as client:
        assert (await client.post(f"/weights/1/fetched/{fetch.id}x")).status == 404
        assert not await fetch.ends_within(0)
        for _ in range(2):  # each worker says it
            assert (await client.post(f"/weights/1/fetched/{fetch.id}")).status == 204
        assert await fetch.ends_within(1)
        store.fetches.forget(fetch)
        assert (await client.post(f"/weights/1/fetched/{fetch.id}")).status == 404
