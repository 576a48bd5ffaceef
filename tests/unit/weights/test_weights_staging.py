"""Tensors to safetensors files."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402

from gymtrain_trainer.weights import StagingError, WeightStore  # noqa: E402
from gymtrain_trainer.weights.staging import stage  # noqa: E402

pytestmark = pytest.mark.torch


def tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "a.weight": torch.randn(3, 5),
        "b.weight": torch.randn(4, 4).t(),  # not contiguous
        "c.scale": torch.tensor(2.5),
        "d.index": torch.arange(7),
        "e.empty": torch.zeros(0, 3),
    }


def read_back(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    given = tensors()
    stage(WeightStore(tmp_path), 1, "demo:0:1", iter(given.items()), None)
    found = read_back(tmp_path / "1")
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], given[name]) for name in given)


def test_floating_point_is_cast_to_the_servers_type(tmp_path: Path) -> None:
    given = tensors()
    stage(WeightStore(tmp_path), 1, "demo:0:1", iter(given.items()), "bfloat16")
    found = read_back(tmp_path / "1")
    assert torch.equal(found["a.weight"], given["a.weight"].bfloat16())
    assert found["d.index"].dtype == torch.int64


def test_large_weights_become_several_files_with_their_sums(tmp_path: Path) -> None:
    manifest = stage(WeightStore(tmp_path), 1, "demo:0:1", iter(tensors().items()), None, shard_bytes=60)
    assert [file.name for file in manifest.files] == [f"0000{number}.safetensors" for number in range(4)]
    for file in manifest.files:
        content = (tmp_path / "1" / file.name).read_bytes()
        assert (len(content), sha256(content).hexdigest()) == (file.bytes, file.sha256)


def test_a_full_disk_is_an_error_after_the_stream_was_drained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def stream() -> Iterator[tuple[str, Any]]:
        for name, tensor in tensors().items():
            drawn.append(name)
            yield name, tensor

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gymtrain_trainer.weights.staging.write_file", full)
    with pytest.raises(StagingError, match="No space left"):
        stage(WeightStore(tmp_path), 1, "demo:0:1", stream(), None, shard_bytes=1)
    assert drawn == list(tensors())


def test_a_model_without_parameters_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StagingError, match="no parameters"):
        stage(WeightStore(tmp_path), 1, "demo:0:1", iter(()), None)
