"""Files that a GPU reads by itself, from one version to the next."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gymtrain_vllm.pinned_files import PinnedFiles, Registration, registration  # noqa: E402

pytestmark = pytest.mark.torch


class Driver:
    """Knows what memory a GPU may read."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.asked = 0
        self.registered: set[int] = set()  # addresses

    def begin(self, memory: Any) -> None:
        self.asked += 1
        if self.refuses:
            raise RuntimeError("cudaHostRegister: CUDA error 801")
        self.registered.add(memory.data_ptr())

    def end(self, memory: Any) -> None:
        self.registered.remove(memory.data_ptr())

    def files(self, place: Path) -> PinnedFiles:
        return PinnedFiles(Registration(self.begin, self.end), place)


def version(place: Path, **contents: bytes) -> list[Path]:
    for name, content in contents.items():
        (place / name).write_bytes(content)
    return [place / name for name in contents]


def test_what_is_written_to_a_file_later_is_what_the_gpu_reads(tmp_path: Path) -> None:
    pinned = Driver().files(tmp_path)
    (file,) = version(tmp_path, a=b"old")
    pinned.hold([file])
    with file.open("r+b") as writer:
        writer.write(b"new")
    tensor = pinned.tensor(file)
    assert tensor is not None
    assert bytes(tensor.numpy()) == b"new"


def test_what_is_written_to_its_memory_is_in_the_file(tmp_path: Path) -> None:
    pinned = Driver().files(tmp_path)
    (file,) = version(tmp_path, a=b"old")
    pinned.hold([file])
    memory = pinned.memory(file)
    assert memory is not None
    memory[:] = b"new"
    assert file.read_bytes() == b"new"


def test_a_file_under_another_name_is_still_held_and_not_asked_for_again(tmp_path: Path) -> None:
    driver = Driver()
    pinned = driver.files(tmp_path)
    (file,) = version(tmp_path, a=b"x")
    pinned.hold([file])
    pinned.hold([file.rename(tmp_path / "b")])
    assert driver.asked == len(driver.registered) == 1
    assert pinned.tensor(tmp_path / "b") is not None


def test_what_a_version_does_not_have_is_given_back(tmp_path: Path) -> None:
    driver = Driver()
    pinned = driver.files(tmp_path)
    first, second = version(tmp_path, a=b"x", b=b"y")
    pinned.hold([first, second])
    pinned.hold([second])
    assert (pinned.tensor(first), len(driver.registered)) == (None, 1)
    pinned.hold([])
    assert not driver.registered


def test_a_file_that_got_another_size_is_another_file(tmp_path: Path) -> None:
    driver = Driver()
    pinned = driver.files(tmp_path)
    (file,) = version(tmp_path, a=b"four")
    pinned.hold([file])
    os.truncate(file, 2)
    assert pinned.tensor(file) is None
    pinned.hold([file])
    assert (driver.asked, len(driver.registered)) == (2, 1)


def test_files_that_are_not_in_memory_are_not_held(tmp_path: Path) -> None:
    driver, memory = Driver(), tmp_path / "shm"
    memory.mkdir()
    pinned = driver.files(memory)
    (elsewhere,) = version(tmp_path, kept=b"x")
    link = memory / "kept"
    link.symlink_to(elsewhere)
    pinned.hold([elsewhere, link])
    assert not driver.asked
    assert pinned.tensor(link) is None


def test_a_gpu_that_cannot_is_asked_no_more_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(refuses=True)
    pinned = driver.files(tmp_path)
    with caplog.at_level(logging.WARNING, "vllm.gymtrain"):
        for number in range(2):
            pinned.hold(version(tmp_path, **{f"v{number}": b"x"}))
    assert driver.asked == 1
    assert pinned.tensor(tmp_path / "v0") is None
    assert [record.getMessage() for record in caplog.records] == [
        "the GPU can't read files by itself, so weights load more slowly: cudaHostRegister: CUDA error 801"
    ]


def test_a_cpu_holds_nothing(tmp_path: Path) -> None:
    pinned = PinnedFiles(registration(torch.device("cpu")), tmp_path)
    (file,) = version(tmp_path, a=b"x")
    pinned.hold([file])
    assert pinned.tensor(file) is None
