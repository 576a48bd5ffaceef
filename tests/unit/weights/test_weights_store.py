"""Staged versions on disk, and what of them HTTP gives away."""

from hashlib import sha256
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gymtrain_api.manifest import WeightFile, WeightManifest
from gymtrain_trainer.weights import StagingError, WeightStore, weight_routes


def publish(store: WeightStore, number: int) -> None:
    folder = store.begin(number)
    (folder / "a.safetensors").write_bytes(b"x")
    file = WeightFile(name="a.safetensors", bytes=1, sha256=sha256(b"x").hexdigest())
    store.commit(number, WeightManifest(version=f"demo:0:{number}", files=[file]))


def test_a_version_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    (store.begin(1) / "a.safetensors").write_bytes(b"half")
    assert store.find("1", "a.safetensors") is None


def test_the_version_before_the_last_is_removed_when_the_next_begins(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    for number in (9, 10):
        publish(store, number)
    store.begin(11)
    assert store.find("9", "manifest.json") is None
    assert store.find("10", "manifest.json") is not None


def test_what_an_earlier_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "staged" / "3").mkdir(parents=True)
    WeightStore(tmp_path / "staged")
    assert not (tmp_path / "staged").exists()


def test_a_folder_that_cannot_be_written_is_a_staging_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StagingError, match="cannot make"):
        WeightStore(tmp_path / "file" / "staged").begin(1)


@pytest.mark.parametrize(
    "path", ["/weights/1/../../secret", "/weights/1/%2e%2e%2fsecret", "/weights/%2e%2e/secret", "/weights/1/.hidden"]
)
async def test_nothing_outside_the_store_can_be_read(tmp_path: Path, path: str) -> None:
    store = WeightStore(tmp_path / "staged")
    publish(store, 1)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "staged" / "1" / ".hidden").write_text("hidden")
    app = web.Application()
    app.add_routes(weight_routes(store))
    async with TestClient(TestServer(app)) as client:
        assert (await client.get(path)).status == 404


async def test_files_of_a_version_are_served(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    publish(store, 1)
    app = web.Application()
    app.add_routes(weight_routes(store))
    async with TestClient(TestServer(app)) as client:
        manifest = WeightManifest.model_validate_json(await (await client.get("/weights/1/manifest.json")).read())
        assert await (await client.get(f"/weights/1/{manifest.files[0].name}")).read() == b"x"
