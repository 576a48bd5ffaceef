"""Copying a remote file to a volume: what happens when connections break, objects change, and volumes fill."""

import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymtrain_gym.datasets import remote
from gymtrain_gym.errors import DatasetError, FetchError

pytestmark = pytest.mark.gym

CONTENT = bytes(range(256)) * 40


class Stored(remote.RemoteFile):
    """A file whose connection breaks after every `every` pieces of 1 KB, `breaks` times."""

    def __init__(
        self, content: bytes = CONTENT, breaks: int = 0, every: int = 1, error: Exception | None = None
    ) -> None:
        self.content, self.breaks, self.every = content, breaks, every
        self.error = error or ConnectionError("reset")
        self.starts: list[int] = []

    def version(self) -> remote.Version:
        return remote.Version(hashlib.sha256(self.content).hexdigest(), len(self.content))

    def pieces(self, start: int) -> Iterator[bytes]:
        self.starts.append(start)
        for sent, place in enumerate(range(start, len(self.content), 1024)):
            if self.breaks and sent == self.every:
                self.breaks -= 1
                raise self.error
            yield self.content[place : place + 1024]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "BACKOFF_SECONDS", 0.0)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "train-0.jsonl"


def copy(stored: Stored, target: Path, version: remote.Version | None = None) -> list[int]:
    progress: list[int] = []
    remote.copy(stored, version or stored.version(), target, progress.append)
    return progress


def test_copy_goes_on_where_the_connection_broke(target: Path) -> None:
    stored = Stored(breaks=3, every=2)
    copy(stored, target)
    assert target.read_bytes() == CONTENT
    assert stored.starts == [0, 2048, 4096, 6144]


def test_progress_is_told(target: Path) -> None:
    assert copy(Stored(), target)[-1] == len(CONTENT)


def test_tries_count_from_the_last_progress(target: Path) -> None:
    copy(Stored(breaks=9), target)
    assert target.read_bytes() == CONTENT


def test_without_progress_tries_are_few_and_nothing_is_left_that_looks_whole(target: Path) -> None:
    stored = Stored(breaks=100, every=0)
    with pytest.raises(FetchError, match="failed 5 times at byte 0, at last: ConnectionError: reset"):
        copy(stored, target)
    assert not target.exists()
    assert len(stored.starts) == remote.TRIES


def test_object_that_changes_meanwhile_is_refused(target: Path) -> None:
    stored = Stored()
    with pytest.raises(FetchError, match="changed while it was fetched"):
        copy(stored, target, remote.Version("of yesterday", len(CONTENT)))
    assert not target.exists()


def test_object_that_ends_too_early_is_tried_again_and_refused(target: Path) -> None:
    stored = Stored()
    announced = remote.Version(stored.version().name, len(CONTENT) + 1)
    stored.version = lambda: announced  # type: ignore[method-assign]
    with pytest.raises(FetchError, match=f"ended after {len(CONTENT)} of {len(CONTENT) + 1} bytes"):
        copy(stored, target)


def test_object_that_does_not_end_where_it_should_is_refused(target: Path) -> None:
    stored = Stored()
    announced = remote.Version(stored.version().name, 1500)
    stored.version = lambda: announced  # type: ignore[method-assign]
    with pytest.raises(FetchError, match="is longer than the 1500 bytes"):
        copy(stored, target)


def test_noted_checksum_is_compared(target: Path) -> None:
    stored = Stored()
    version = remote.Version("v", len(CONTENT), md5=hashlib.md5(b"other", usedforsecurity=False).digest())
    stored.version = lambda: version  # type: ignore[method-assign]
    with pytest.raises(FetchError, match="has not the checksum"):
        copy(stored, target)
    assert not target.exists()


def test_object_larger_than_the_volume_is_refused_before_it_is_fetched(target: Path) -> None:
    stored = Stored()
    with pytest.raises(FetchError, match=r"and the volume has room for .* see spec.data.storage"):
        copy(stored, target, remote.Version("v", 2**62))
    assert stored.starts == []


def test_full_volume_is_not_tried_again(target: Path) -> None:
    stored = Stored(breaks=1, error=OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(FetchError, match=r"fills the volume after 0.0 MB: see spec.data.storage"):
        copy(stored, target)
    assert stored.starts == [0]


@pytest.mark.parametrize("error", [PermissionError("403"), FileNotFoundError("none")])
def test_refusals_are_not_tried_again(target: Path, error: Exception) -> None:
    stored = Stored(breaks=1, error=error)
    with pytest.raises(DatasetError, match="its secret"):
        copy(stored, target)
    assert stored.starts == [0]
