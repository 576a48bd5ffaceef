"""A fetch that begins before it is asked for."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web
from blake3 import blake3

from gymtrain_api.manifest import PullUpdate, WeightPart
from gymtrain_trainer.weights import WeightStore, weight_routes
from gymtrain_trainer.weights.store import Draft
from gymtrain_vllm.ahead import FetchAhead
from gymtrain_vllm.errors import FetchError
from tests.support.fake_vllm import free_port, serving

NAME, CONTENT = "0.safetensors", b"weights"


class Trainer:
    """A store behind HTTP."""

    def __init__(self, folder: Path) -> None:
        self.store = WeightStore(folder)
        self.port = free_port()

    def begin(self, number: int) -> Draft:
        return self.store.begin(number, f"demo:0:{number}")

    def finish(self, draft: Draft, content: bytes = CONTENT) -> None:
        (draft.folder / NAME).write_bytes(content)
        digest = blake3(CONTENT).hexdigest()
        draft.manifest.add(WeightPart(name=NAME, size=len(CONTENT), offset=0, bytes=len(CONTENT), blake3=digest))
        draft.manifest.end()

    def update(self, number: int, seconds: float = 5.0) -> PullUpdate:
        url = f"http://127.0.0.1:{self.port}/weights/{number}/manifest"
        return PullUpdate(manifest_url=url, version=f"demo:0:{number}", timeout_seconds=seconds)


@pytest.fixture
async def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trainer]:
    monkeypatch.setattr("gymtrain_vllm.download.time.sleep", lambda _: None)
    found = Trainer(tmp_path / "staged")
    app = web.Application()
    app.add_routes(weight_routes(found.store))
    async with serving(app, "127.0.0.1", found.port):
        yield found


@pytest.fixture
def ahead(tmp_path: Path) -> Iterator[FetchAhead]:
    found = FetchAhead(tmp_path / "pod")
    yield found
    found.close()


async def test_what_was_begun_is_there_when_it_is_asked_for(trainer: Trainer, ahead: FetchAhead) -> None:
    draft = trainer.begin(1)
    ahead.begin(trainer.update(1))
    trainer.finish(draft)
    files = await asyncio.to_thread(ahead.files, trainer.update(1))
    assert [file.read_bytes() for file in files] == [CONTENT]


async def test_what_was_not_begun_is_fetched_when_it_is_asked_for(trainer: Trainer, ahead: FetchAhead) -> None:
    trainer.finish(trainer.begin(1))
    assert len(await asyncio.to_thread(ahead.files, trainer.update(1))) == 1


async def test_another_version_ends_the_fetch_that_was_begun(trainer: Trainer, ahead: FetchAhead) -> None:
    trainer.begin(1)  # never finished
    ahead.begin(trainer.update(1, seconds=60))
    trainer.finish(trainer.begin(2))
    async with asyncio.timeout(5):
        waiting = asyncio.create_task(asyncio.to_thread(ahead.files, trainer.update(2)))
        await asyncio.sleep(0)
        trainer.store.drop(1)  # the next line, or the end, of the manifest is what the first fetch waits for
        (file,) = await waiting
    assert file.read_bytes() == CONTENT


async def test_a_version_that_nobody_asked_for_leaves_nothing(trainer: Trainer, ahead: FetchAhead) -> None:
    trainer.finish(trainer.begin(1))
    ahead.begin(trainer.update(1))
    trainer.finish(trainer.begin(2))
    (file,) = await asyncio.to_thread(ahead.files, trainer.update(2))
    assert [path.name for path in file.parent.parent.iterdir()] == [file.parent.name]


async def test_after_a_fetch_that_failed_the_next_one_starts_anew(trainer: Trainer, ahead: FetchAhead) -> None:
    trainer.finish(trainer.begin(1), content=b"damaged")
    ahead.begin(trainer.update(1))
    with pytest.raises(FetchError, match="blake3"):
        await asyncio.to_thread(ahead.files, trainer.update(1))
    (trainer.store.weights(1)[0]).write_bytes(CONTENT)
    (file,) = await asyncio.to_thread(ahead.files, trainer.update(1))
    assert file.read_bytes() == CONTENT


async def test_what_a_killed_process_left_is_removed(trainer: Trainer, ahead: FetchAhead, tmp_path: Path) -> None:
    left = tmp_path / "pod" / "gymtrain-weights-0123456789abcdef"
    left.mkdir(parents=True)
    trainer.finish(trainer.begin(1))
    await asyncio.to_thread(ahead.files, trainer.update(1))
    assert not left.exists()


async def test_the_wait_has_a_deadline(trainer: Trainer, ahead: FetchAhead) -> None:
    trainer.begin(1)  # never finished
    ahead.begin(trainer.update(1, seconds=60))
    with pytest.raises(FetchError, match="not done in"):
        await asyncio.to_thread(ahead.files, trainer.update(1, seconds=0.1))
    trainer.store.drop(1)
