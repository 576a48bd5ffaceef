"""A fetch that begins before it is asked for."""

import asyncio
import mmap
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from aiohttp import web
from blake3 import blake3

from gymtrain_api.manifest import PullUpdate, WeightPart
from gymtrain_trainer.weights import WeightStore, weight_routes
from gymtrain_trainer.weights.store.weight_store import Draft
from gymtrain_vllm.errors import FetchError
from gymtrain_vllm.fetch import BackgroundFetch
from tests.support.fake_vllm import free_port, serving

NAME, CONTENT = "0.safetensors", b"weights"


class Trainer:
    """A store behind HTTP."""

    def __init__(self, folder: Path) -> None:
        self.store = WeightStore(folder)
        self.port = free_port()
        self.attempt = 0

    def begin(self, number: int) -> Draft:
        return self.store.begin(number, f"demo:{self.attempt}:{number}")

    def announce(self, draft: Draft, content: bytes = CONTENT, *, kept: bool = False) -> None:
        (draft.folder / NAME).write_bytes(content)
        digest = blake3(CONTENT).hexdigest()
        size = len(CONTENT)
        draft.manifest.add(WeightPart(name=NAME, size=size, offset=0, bytes=size, blake3=digest, kept=kept))

    def finish(self, draft: Draft, content: bytes = CONTENT, *, kept: bool = False) -> None:
        self.announce(draft, content, kept=kept)
        draft.manifest.end()

    def update(self, number: int, seconds: float = 5.0) -> PullUpdate:
        url = f"http://127.0.0.1:{self.port}/weights/{number}/manifest"
        return PullUpdate(manifest_url=url, version=f"demo:{self.attempt}:{number}", timeout_seconds=seconds)


@pytest.fixture
async def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trainer]:
    monkeypatch.setattr("gymtrain_vllm.download.time.sleep", lambda _: None)
    found = Trainer(tmp_path / "staged")
    app = web.Application()
    app.add_routes(weight_routes(found.store))
    async with serving(app, "127.0.0.1", found.port):
        yield found


@pytest.fixture
def ahead(tmp_path: Path) -> Iterator[BackgroundFetch]:
    found = BackgroundFetch(tmp_path / "pod")
    yield found
    found.close()


async def test_what_was_begun_is_there_when_it_is_asked_for(trainer: Trainer, ahead: BackgroundFetch) -> None:
    draft = trainer.begin(1)
    ahead.begin(trainer.update(1))
    trainer.finish(draft)
    files = await asyncio.to_thread(ahead.files, trainer.update(1))
    assert [file.read_bytes() for file in files] == [CONTENT]


async def test_what_was_not_begun_is_fetched_when_it_is_asked_for(trainer: Trainer, ahead: BackgroundFetch) -> None:
    trainer.finish(trainer.begin(1))
    assert len(await asyncio.to_thread(ahead.files, trainer.update(1))) == 1


async def test_another_version_ends_the_fetch_that_was_begun(trainer: Trainer, ahead: BackgroundFetch) -> None:
    trainer.begin(1)  # never finished
    ahead.begin(trainer.update(1, seconds=60))
    trainer.finish(trainer.begin(2))
    async with asyncio.timeout(5):
        waiting = asyncio.create_task(asyncio.to_thread(ahead.files, trainer.update(2)))
        await asyncio.sleep(0)
        trainer.store.drop(1)  # the next line, or the end, of the manifest is what the first fetch waits for
        (file,) = await waiting
    assert file.read_bytes() == CONTENT


async def test_a_version_that_nobody_asked_for_leaves_nothing(trainer: Trainer, ahead: BackgroundFetch) -> None:
    trainer.finish(trainer.begin(1))
    ahead.begin(trainer.update(1))
    trainer.finish(trainer.begin(2))
    (file,) = await asyncio.to_thread(ahead.files, trainer.update(2))
    assert [path.name for path in file.parent.parent.iterdir()] == [file.parent.name]


async def test_after_a_fetch_that_failed_the_next_one_starts_anew(trainer: Trainer, ahead: BackgroundFetch) -> None:
    trainer.finish(trainer.begin(1), content=b"damaged")
    ahead.begin(trainer.update(1))
    with pytest.raises(FetchError, match="blake3"):
        await asyncio.to_thread(ahead.files, trainer.update(1))
    staged = trainer.store.find("1", NAME)
    assert staged is not None
    staged.write_bytes(CONTENT)
    (file,) = await asyncio.to_thread(ahead.files, trainer.update(1))
    assert file.read_bytes() == CONTENT


async def test_what_a_killed_process_left_is_removed(trainer: Trainer, ahead: BackgroundFetch, tmp_path: Path) -> None:
    left = tmp_path / "pod" / "gymtrain-weights-0123456789abcdef"
    left.mkdir(parents=True)
    trainer.finish(trainer.begin(1))
    await asyncio.to_thread(ahead.files, trainer.update(1))
    assert not left.exists()


async def test_what_a_fetch_that_broke_off_left_goes_with_the_next_version(
    trainer: Trainer, ahead: BackgroundFetch, tmp_path: Path
) -> None:
    for number in (1, 2):  # not only what the process finds when it starts
        trainer.finish(trainer.begin(number), content=b"damaged")
        with pytest.raises(FetchError, match="blake3"):
            await asyncio.to_thread(ahead.files, trainer.update(number))
    trainer.finish(trainer.begin(3))
    (file,) = await asyncio.to_thread(ahead.files, trainer.update(3))
    assert list((tmp_path / "pod").iterdir()) == [file.parent]


async def test_a_new_attempt_removes_what_earlier_ones_kept(trainer: Trainer, tmp_path: Path) -> None:
    workers = [BackgroundFetch(tmp_path / "pod") for _ in range(2)]  # of one server
    for trainer.attempt in range(3):
        trainer.store.clear()
        trainer.finish(trainer.begin(1), kept=True)
        for worker in workers:
            worker.begin(trainer.update(1))
        for (file,) in await asyncio.gather(*(asyncio.to_thread(each.files, trainer.update(1)) for each in workers)):
            assert file.read_bytes() == CONTENT
    kept = [path.name for path in (tmp_path / "pod").iterdir() if path.name.startswith("gymtrain-kept-")]
    assert len(kept) == 1
    for worker in workers:
        worker.close()


async def test_what_another_worker_still_writes_stays_until_it_has_ended(
    trainer: Trainer, ahead: BackgroundFetch, tmp_path: Path
) -> None:
    other = BackgroundFetch(tmp_path / "pod")
    trainer.announce(trainer.begin(1))  # never finished
    other.begin(trainer.update(1, seconds=60))
    async with asyncio.timeout(5):
        while not (found := list((tmp_path / "pod").glob(f"*/{NAME}"))):  # noqa: ASYNC110 - a thread makes it
            await asyncio.sleep(0.001)
        for number, stays in ((2, True), (3, False)):
            trainer.finish(trainer.begin(number))
            await asyncio.to_thread(ahead.files, trainer.update(number))
            assert found[0].exists() is stays
            trainer.store.drop(1)
            other.close()
            await asyncio.to_thread(other._pool.shutdown)  # waits for the thread


async def test_the_wait_has_a_deadline(trainer: Trainer, ahead: BackgroundFetch) -> None:
    trainer.begin(1)  # never finished
    ahead.begin(trainer.update(1, seconds=60))
    with pytest.raises(FetchError, match="not done in"):
        await asyncio.to_thread(ahead.files, trainer.update(1, seconds=0.1))
    trainer.store.drop(1)


@pytest.mark.parametrize("reuses", [True, False])
async def test_a_version_is_written_into_the_memory_of_the_one_before_where_nothing_looks_at_it(
    trainer: Trainer, ahead: BackgroundFetch, tmp_path: Path, reuses: bool
) -> None:
    ahead.reuses = reuses
    trainer.finish(trainer.begin(1))
    (first,) = files = await asyncio.to_thread(ahead.files, trainer.update(1))
    with first.open("rb") as view:
        ahead.done_with(files)
        trainer.finish(trainer.begin(2))
        (second,) = await asyncio.to_thread(ahead.files, trainer.update(2))
        assert os.path.samestat(os.fstat(view.fileno()), second.stat()) is reuses
    assert second.read_bytes() == CONTENT
    assert not first.exists()


class Mapped:
    """Holds files as the plugin does on a GPU."""

    def __init__(self) -> None:
        self.files: list[Path] = []
        self.maps: dict[int, mmap.mmap] = {}

    def hold(self, files: Sequence[Path]) -> None:
        self.files = list(files)
        for file in files:
            with file.open("r+b") as opened:
                self.maps.setdefault(file.stat().st_ino, mmap.mmap(opened.fileno(), 0))

    def memory(self, file: Path) -> memoryview | None:
        found = self.maps.get(file.stat().st_ino)
        return None if found is None else memoryview(found)


@pytest.fixture
def mapped() -> Mapped:
    return Mapped()


@pytest.fixture
def holding(tmp_path: Path, mapped: Mapped) -> Iterator[BackgroundFetch]:
    found = BackgroundFetch(tmp_path / "pod", mapped)
    found.reuses = True
    yield found
    found.close()


async def test_the_next_version_comes_into_the_memory_that_is_held(
    trainer: Trainer, holding: BackgroundFetch, mapped: Mapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.finish(trainer.begin(1))
    (first,) = files = await asyncio.to_thread(holding.files, trainer.update(1))
    assert mapped.files == files
    with first.open("r+b") as damaged:
        damaged.write(b"x" * len(CONTENT))
    holding.done_with(files)
    monkeypatch.setattr("gymtrain_vllm.download._write", None)  # not as into a file
    trainer.finish(trainer.begin(2))
    (second,) = await asyncio.to_thread(holding.files, trainer.update(2))
    assert second.read_bytes() == CONTENT
    assert len(mapped.maps) == 1


async def test_the_trainer_hears_of_a_fetch_once_its_files_are_held(
    trainer: Trainer, holding: BackgroundFetch, mapped: Mapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, hold = threading.Event(), mapped.hold

    def slow(files: Sequence[Path]) -> None:
        assert go_on.wait(5)
        hold(files)

    monkeypatch.setattr(mapped, "hold", slow)
    fetch = trainer.store.fetches.begin()
    trainer.finish(trainer.begin(1))
    holding.begin(trainer.update(1).model_copy(update={"fetch_id": fetch.id}))
    assert not await fetch.ends_within(0.2)
    go_on.set()
    assert await fetch.ends_within(5)


async def test_files_of_a_version_that_nobody_asked_for_are_held_no_more(
    trainer: Trainer, holding: BackgroundFetch, mapped: Mapped
) -> None:
    trainer.finish(trainer.begin(1))
    holding.begin(trainer.update(1))
    async with asyncio.timeout(5):
        while not mapped.files:  # noqa: ASYNC110 - another thread holds them
            await asyncio.sleep(0.001)
    holding.give_up()
    async with asyncio.timeout(5):
        while mapped.files:  # noqa: ASYNC110 - another thread lets go of them
            await asyncio.sleep(0.001)


async def test_a_file_that_broke_off_is_not_cut_under_who_holds_it(
    trainer: Trainer, holding: BackgroundFetch, mapped: Mapped
) -> None:
    """What was cut off would go on to be read by a GPU."""
    trainer.finish(trainer.begin(1))
    holding.done_with(await asyncio.to_thread(holding.files, trainer.update(1)))
    trainer.finish(trainer.begin(2), content=b"damaged")
    with pytest.raises(FetchError, match="blake3"):
        await asyncio.to_thread(holding.files, trainer.update(2))
    staged, held = trainer.store.find("2", NAME), set(mapped.maps)
    assert staged is not None
    staged.write_bytes(CONTENT)
    (file,) = await asyncio.to_thread(holding.files, trainer.update(2))
    assert file.stat().st_ino not in held


async def test_the_end_gives_the_memory_back(trainer: Trainer, ahead: BackgroundFetch, tmp_path: Path) -> None:
    ahead.reuses = True
    trainer.finish(trainer.begin(1))
    ahead.done_with(await asyncio.to_thread(ahead.files, trainer.update(1)))
    ahead.close()
    assert list((tmp_path / "pod").iterdir()) == []


@pytest.mark.parametrize("content", [CONTENT, b"damaged"])
async def test_the_trainer_is_told_when_there_is_nothing_to_wait_for(
    trainer: Trainer, ahead: BackgroundFetch, content: bytes
) -> None:
    fetch, draft = trainer.store.fetches.begin(), trainer.begin(1)
    ahead.begin(trainer.update(1).model_copy(update={"fetch_id": fetch.id}))
    assert not await fetch.ends_within(0.05)
    trainer.finish(draft, content)
    assert await fetch.ends_within(5)


async def test_a_fetch_that_is_under_way_is_heard_of(trainer: Trainer, ahead: BackgroundFetch) -> None:
    fetch = trainer.store.fetches.begin()
    silent = fetch.silent_seconds
    while silent < 0.05:
        await asyncio.sleep(0.01)
        silent = fetch.silent_seconds
    draft = trainer.begin(1)
    ahead.begin(trainer.update(1).model_copy(update={"fetch_id": fetch.id}))
    async with asyncio.timeout(5):
        while fetch.silent_seconds >= silent:  # noqa: ASYNC110 - another thread hears it
            await asyncio.sleep(0.001)
    trainer.finish(draft)
