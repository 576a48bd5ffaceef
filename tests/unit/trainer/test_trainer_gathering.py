"""Whole tensors of a sharded model: the same as torch gathers one by one, in fewer collectives."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.unit.trainer.test_trainer_ranks import run_ranks  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

RANKS = 4


def test_buckets_hold_what_torch_gathers_tensor_by_tensor_in_fewer_collectives(tmp_path: Path) -> None:
    assert run_ranks("trainer_gathering", str(tmp_path), processes=RANKS) == [0] * RANKS
    for rank in range(RANKS):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["wrong"] == []
        # Twice: a bucket of five small tensors, the large one, another, the integers; one behind the plain tensor, and
        # that of other ranks.
        assert found["collectives"] == 2 * 6, "tensors share buckets"
