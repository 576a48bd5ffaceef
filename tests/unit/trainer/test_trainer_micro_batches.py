"""A step of several micro-batches on two processes: when gradients are exchanged, and that this changes no update."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from safetensors.torch import load_file  # noqa: E402

from tests.unit.trainer.test_trainer_ranks import run_ranks  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


@pytest.fixture
def compute(tmp_path: Path, tiny_model: Path) -> Callable[[str], Path]:
    """Computes the step both ways, and returns the folder: see trainer_gradients.py."""

    def run(layer: str) -> Path:
        folder = tmp_path / (layer or "replicated")
        folder.mkdir()
        assert run_ranks("trainer_gradients", str(folder), str(tiny_model), layer) == [0, 0]
        return folder

    return run


def held(folder: Path, name: str) -> list[list[dict[str, int]]]:
    """What each rank holds before each micro-batch."""
    found: list[list[dict[str, int]]] = json.loads((folder / f"{name}.json").read_text())
    return found


def same(one: Path, other: Path) -> None:
    """Two files have the same tensors, but for rounding."""
    these, those = load_file(one), load_file(other)
    assert these.keys() == those.keys()
    for name, tensor in these.items():
        assert tensor.abs().max() > 0, f"{name} isn't trained"
        torch.testing.assert_close(tensor, those[name], atol=1e-6, rtol=1e-4)


def test_a_sharded_model_keeps_shares_of_gradients_and_makes_the_same_update(compute: Callable[[str], Path]) -> None:
    folder = compute("Qwen3DecoderLayer")
    for what in ("gradients", "weights"):
        same(folder / f"usual-{what}.safetensors", folder / f"at-the-end-{what}.safetensors")
    whole = sum(tensor.numel() for tensor in load_file(folder / "usual-gradients.safetensors").values())
    first, *later = held(folder, "usual")
    assert first == [{"exchanged": 0, "waiting": 0}] * 2
    for ranks in later:
        assert [rank["waiting"] for rank in ranks] == [0, 0]
        assert sum(rank["exchanged"] for rank in ranks) == whole, "each has its share"
    # What it would be otherwise: each rank holds the gradients of the whole model.
    assert held(folder, "at-the-end")[1:] == [[{"exchanged": 0, "waiting": whole}] * 2] * 2
    alone = compute("")
    for what in ("gradients", "weights"):
        same(folder / f"usual-{what}.safetensors", alone / f"usual-{what}.safetensors")
