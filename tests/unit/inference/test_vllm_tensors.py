"""Reading safetensors files in one block."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
from safetensors.torch import save_file  # noqa: E402

from gymtrain_vllm import tensors as module  # noqa: E402
from gymtrain_vllm.pinned_files import PinnedFiles, Registration  # noqa: E402
from gymtrain_vllm.tensors import BlockReader, read_tensors  # noqa: E402

pytestmark = pytest.mark.torch


def tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "a": torch.randn(3, 5),
        "b": torch.randn(4).bfloat16(),
        "c": torch.tensor(2.5),
        "d": torch.arange(3, dtype=torch.int8),
        "e": torch.zeros(0, 3),
        "f": torch.randn(7),
    }


def read_whole(file: Path) -> dict[str, Any]:
    with ThreadPoolExecutor(3) as pool:
        return BlockReader(pool, torch.device("cpu")).begin(file).tensors()


@pytest.mark.parametrize("step", [1, 16, 1 << 20])
def test_a_file_in_one_block_is_what_the_library_wrote(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STEP", step)
    save_file(tensors(), tmp_path / "x.safetensors", metadata={"format": "pt"})
    found = read_whole(tmp_path / "x.safetensors")
    assert found.keys() == tensors().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors().items())


def test_a_file_that_is_held_is_one_copy_without_threads(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "x.safetensors")
    pinned = PinnedFiles(Registration(lambda _: None, lambda _: None), tmp_path)
    pinned.hold([tmp_path / "x.safetensors"])
    with ThreadPoolExecutor(1) as pool:
        pool.shutdown()
        found = BlockReader(pool, torch.device("cpu"), pinned).begin(tmp_path / "x.safetensors").tensors()
    assert found.keys() == tensors().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors().items())


def test_tensors_outlive_their_file(tmp_path: Path) -> None:
    save_file({"a": torch.ones(8)}, tmp_path / "x.safetensors")
    found = read_whole(tmp_path / "x.safetensors")
    (tmp_path / "x.safetensors").unlink()
    assert float(found["a"].sum()) == 8.0


def test_a_file_without_bytes_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(0, 2)}, tmp_path / "x.safetensors")
    assert read_whole(tmp_path / "x.safetensors")["a"].shape == (0, 2)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_all_files_are_read_in_order(tmp_path: Path, device: str) -> None:
    """The device "meta" has no memory, and goes the way of a GPU."""
    files = []
    for number in range(7):
        files.append(tmp_path / f"{number}.safetensors")
        save_file({f"t{number}": torch.full((4,), float(number))}, files[-1])
    found = list(read_tensors(files, torch.device(device)))
    assert [name for name, _ in found] == [f"t{number}" for number in range(7)]
