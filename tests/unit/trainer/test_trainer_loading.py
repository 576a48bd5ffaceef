"""What a process makes of a model whose weights another one reads for it; two processes: test_trainer_sharded.py."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from transformers import Glm4MoeForCausalLM, PreTrainedModel, Qwen3ForCausalLM  # noqa: E402

from gymtrain_trainer.trl import internals  # noqa: E402
from tests.unit.trainer.test_trainer_experts import GLM  # noqa: E402

pytestmark = pytest.mark.torch


def load(cls: Any, folder: Path, *, here: bool = False) -> tuple[Any, dict[str, Any]]:
    """The model of one rank, as TRL loads it, and what accelerate is told."""
    sharding = {"cpu_ram_efficient_loading": True}
    with internals.models_read_once(sharding, here=here):
        return cls.from_pretrained(str(folder), device_map=None, dtype=torch.float32, trust_remote_code=False), sharding


def test_the_rank_that_reads_has_the_weights(tiny_model: Path) -> None:
    usual = Qwen3ForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model, sharding = load(Qwen3ForCausalLM, tiny_model, here=True)
    assert all(map(torch.equal, model.state_dict().values(), usual.state_dict().values()))
    assert sharding == {"cpu_ram_efficient_loading": True}


@pytest.mark.parametrize("tied", [True, False])
def test_another_rank_has_zeros_in_place_of_weights_and_all_else(tiny_models: Callable[..., Path], tied: bool) -> None:
    folder = tiny_models("bfloat16", tie_word_embeddings=tied)
    usual = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model, sharding = load(Qwen3ForCausalLM, folder)
    assert sharding == {"cpu_ram_efficient_loading": True}
    for (name, parameter), (same, other) in zip(model.named_parameters(), usual.named_parameters(), strict=True):
        assert (name, parameter.shape, parameter.dtype) == (same, other.shape, torch.float32)
        assert not parameter.any()
    assert len({parameter.data_ptr() for parameter in model.parameters()}) == len(list(model.parameters()))
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert [name for name, _ in model.named_buffers()] == [name for name, _ in usual.named_buffers()]
    assert all(map(torch.equal, model.buffers(), usual.buffers()))
    assert model.config.name_or_path == str(folder)


def test_another_rank_makes_room_without_taking_memory(tiny_model: Path, tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    config = json.loads((tiny_model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 1 << 20, "hidden_size": 64}))
    load(Qwen3ForCausalLM, tiny_model)  # what else is loaded once
    before = resident()
    model, _ = load(Qwen3ForCausalLM, tmp_path)
    assert sum(parameter.nbytes for parameter in model.parameters()) > 256 << 20
    assert resident() - before < 64 << 20


def test_each_rank_reads_a_model_with_buffers_in_its_checkpoint(tiny_models: Callable[..., Path]) -> None:
    folder = tiny_models(kind="Glm4Moe", **GLM)
    usual = Glm4MoeForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for here in (True, False):
        model, sharding = load(Glm4MoeForCausalLM, folder, here=here)
        assert all(map(torch.equal, model.state_dict().values(), usual.state_dict().values()))
        assert sharding == {"cpu_ram_efficient_loading": False}, "accelerate can't send it"


def test_each_rank_reads_a_quantized_model(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    asked: list[Any] = []
    usual = classmethod(lambda cls, path, **arguments: asked.append((path, arguments.get("state_dict"))))
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", usual)
    load(Qwen3ForCausalLM, tmp_path)
    assert asked == [(str(tmp_path), None)]
