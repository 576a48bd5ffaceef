"""Tensors to safetensors files."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402

from gymtrain_api.manifest import WeightPart  # noqa: E402
from gymtrain_trainer.weights import StagingError, WeightStore  # noqa: E402
from gymtrain_trainer.weights.store.staging import stage  # noqa: E402

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


def staged(
    tmp_path: Path, given: Iterator[tuple[str, Any]], dtype: str | None = None, **sizes: int
) -> list[WeightPart]:
    """The parts that were announced."""
    draft = WeightStore(tmp_path).begin(1, "demo:0:1")
    announced: list[WeightPart] = []
    add = draft.manifest.add

    def note(part: WeightPart) -> None:
        announced.append(part)
        add(part)

    draft.manifest.add = note  # type: ignore[assignment,method-assign]
    stage(draft, given, dtype, **sizes)
    assert draft.manifest.complete
    return announced


def read_back(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    given = tensors()
    staged(tmp_path, iter(given.items()))
    found = read_back(tmp_path / "1")
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], given[name]) for name in given)


def test_floating_point_is_cast_to_the_servers_type(tmp_path: Path) -> None:
    given = tensors()
    staged(tmp_path, iter(given.items()), "bfloat16")
    found = read_back(tmp_path / "1")
    assert torch.equal(found["a.weight"], given["a.weight"].bfloat16())
    assert found["d.index"].dtype == torch.int64


def test_large_weights_become_several_files(tmp_path: Path) -> None:
    given = tensors()
    parts = staged(tmp_path, iter(given.items()), shard_bytes=60)
    assert sorted(part.name for part in parts) == [f"0000{number}.safetensors" for number in range(4)]
    assert read_back(tmp_path / "1").keys() == given.keys()


@pytest.mark.parametrize("part_bytes", [1, 64, 1000])
def test_each_part_is_announced_with_its_sum(tmp_path: Path, part_bytes: int) -> None:
    given = tensors()
    parts = staged(tmp_path, iter(given.items()), shard_bytes=60, part_bytes=part_bytes)
    for path in (tmp_path / "1").iterdir():
        content = path.read_bytes()
        own = sorted((part for part in parts if part.name == path.name), key=lambda part: part.offset)
        assert [part.offset for part in own] == list(range(0, len(content), part_bytes))
        for part in own:
            piece = content[part.offset : part.offset + part.bytes]
            assert (part.size, part.blake3) == (len(content), blake3(piece).hexdigest())
    found = read_back(tmp_path / "1")
    assert all(torch.equal(found[name], given[name]) for name in given)


def test_a_part_is_announced_before_later_tensors_are_drawn(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    draft = store.begin(1, "demo:0:1")
    deadline = time.monotonic() + 10

    def stream() -> Iterator[tuple[str, Any]]:
        yield "first", torch.ones(4)
        while not draft.manifest.parts and time.monotonic() < deadline:
            time.sleep(0.001)
        assert draft.manifest.parts
        yield "second", torch.ones(4)

    stage(draft, stream(), None, shard_bytes=1)
    assert draft.manifest.parts == 2


def test_a_full_disk_is_an_error_after_the_stream_was_drained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def stream() -> Iterator[tuple[str, Any]]:
        for name, tensor in tensors().items():
            drawn.append(name)
            yield name, tensor

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gymtrain_trainer.weights.store.safetensors_files.os.pwrite", full)
    draft = WeightStore(tmp_path).begin(1, "demo:0:1")
    with pytest.raises(StagingError, match="No space left"):
        stage(draft, stream(), None, shard_bytes=1)
    assert not draft.manifest.complete
    assert drawn == list(tensors())


def test_a_model_without_parameters_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StagingError, match="no parameters"):
        stage(WeightStore(tmp_path).begin(1, "demo:0:1"), iter(()), None)
