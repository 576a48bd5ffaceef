"""Tensors that came from a GPU in one block of memory are told apart without copying the most of them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from gymtrain_trainer.weights.store.layout import Earlier, Layout, TensorSlice  # noqa: E402
from gymtrain_trainer.weights.store.safetensors_files import FileWriter  # noqa: E402
from gymtrain_trainer.weights.store.staging import Sorting  # noqa: E402

pytestmark = pytest.mark.torch

SIZES = {"layers.0.mlp.up_proj.weight": 1000, "layers.0.norm.weight": 10}


class Files:
    """Notes what would be written, and where its memory is."""

    def __init__(self) -> None:
        self.slices: dict[str, TensorSlice] = {}
        self.written: dict[str, int] = {}

    def write(self, tensors: Sequence[tuple[str, Any]], *, settled: bool = False) -> None:
        self.written |= {name: tensor.data_ptr() for name, tensor in tensors}

    def finish(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("unchanged", "copied"),
    [("layers.0.norm.weight", "layers.0.norm.weight"), ("layers.0.mlp.up_proj.weight", "layers.0.norm.weight")],
)
def test_only_what_would_hold_much_memory_for_little_is_copied(
    monkeypatch: pytest.MonkeyPatch, unchanged: str, copied: str
) -> None:
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _: True)
    monkeypatch.setattr(Earlier, "same", lambda _self, name, _tensor: name == unchanged)
    block = torch.zeros(sum(SIZES.values()))
    shard = list(zip(SIZES, block.split(list(SIZES.values())), strict=True))
    slices = {name: TensorSlice("old", 0, 4 * size, "float32", (size,)) for name, size in SIZES.items()}
    files = Files()
    before = Layout(Path(), slices, unchanged=frozenset({unchanged}))
    with ThreadPoolExecutor(1) as pool:
        Sorting(Path(), before, cast(FileWriter, files), 1 << 20).run([shard], pool)
    assert {name for name, tensor in shard if files.written[name] != tensor.data_ptr()} == {copied}
