"""Mixtures of experts: on one process, and sharded over two, where one process reads the weights.

transformers holds the experts of a layer as two tensors, and writes three for each expert.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from trl.experimental.async_grpo import async_grpo_trainer  # noqa: E402

from gymtrain_trainer.stopping import StopSignal  # noqa: E402
from gymtrain_trainer.trl import internals  # noqa: E402
from tests.unit.trainer.test_trainer_ranks import SAME, train_ranks  # noqa: E402
from tests.unit.trainer.trainer_agent import AgentThread  # noqa: E402
from tests.unit.trainer.trainer_vllm import VLLM, make_context, run_process  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

QWEN: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
GLM: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
}
SHARDED: dict[str, Any] = {
    "fsdp": True,
    "fsdp_config": {"transformer_layer_cls_to_wrap": ["Qwen3MoeDecoderLayer"]},
}
RATE = 1e-4  # AdamW's first steps move a weight by this at most each


def parameters(folder: Path, dtype: Any = torch.float32) -> dict[str, Any]:
    """As transformers holds them."""
    model, information = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert not any(information.values()), information
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_two_processes_train_sync_and_export_experts_that_one_of_them_reads(
    tmp_path: Path, tiny_models: Callable[..., Path], without_weights: Callable[[Path], Path]
) -> None:
    model = tiny_models("bfloat16", "Qwen3Moe", **QWEN)
    others = {"MODEL_OF_OTHERS": str(without_weights(model))}
    codes, checkpoint = train_ranks(tmp_path, model, {}, others, **SHARDED, learning_rate=RATE, max_steps=2)
    assert (codes, checkpoint.state.step) == ([0, 0], 2)
    assert float((tmp_path / "parity").read_text()) < SAME
    before, after = parameters(model), load_file(tmp_path / "sent.safetensors")
    assert before.keys() == after.keys()
    for name, weights in before.items():
        moved = (after[name] - weights).abs()
        assert moved.max() <= 2.02 * RATE, f"{name} isn't what was read"
        for rank, share in enumerate(moved.chunk(2)):
            assert share.max() > 0, f"rank {rank} doesn't train {name}"

    exported = tmp_path / "checkpoints" / "model"
    files = {name: tensor for file in exported.glob("*.safetensors") for name, tensor in load_file(file).items()}
    came = load_file(model / "model.safetensors")
    assert {name: tensor.shape for name, tensor in files.items()} == {name: t.shape for name, t in came.items()}
    assert {tensor.dtype for tensor in files.values()} == {torch.bfloat16}
    for name, tensor in parameters(exported, torch.bfloat16).items():
        assert torch.equal(tensor, after[name].to(torch.bfloat16)), name


def test_a_model_whose_operations_trl_cannot_count_is_trained(
    tmp_path: Path, tiny_models: Callable[..., Path], served: AgentThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_models(kind="Glm4Moe", **GLM)
    monkeypatch.setattr(async_grpo_trainer, "compute_flops_per_token", async_grpo_trainer.compute_flops_per_token)
    vllm = VLLM(model)
    served.agent.behaviour = vllm.answer
    made = make_context(tmp_path, model, served.agent.url, {}, max_steps=2)
    board = run_process(made, vllm, StopSignal(), monkeypatch.setattr)
    assert board is not None
    assert board.snapshot().step == 2


@pytest.mark.parametrize(("kind", "settings", "counted"), [("Qwen3Moe", QWEN, True), ("Glm4Moe", GLM, False)])
def test_mfu_is_left_out_where_it_is_not_known(
    tiny_models: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    settings: dict[str, Any],
    counted: bool,
) -> None:
    usual = async_grpo_trainer.compute_flops_per_token
    monkeypatch.setattr(async_grpo_trainer, "compute_flops_per_token", usual)
    model = AutoModelForCausalLM.from_pretrained(tiny_models(kind=kind, **settings))
    trainer = SimpleNamespace(model=model, _peak_flops_per_device=1e15)
    internals.leave_out_unknown_mfu(trainer)
    assert (trainer._peak_flops_per_device == 1e15) is counted
    assert (async_grpo_trainer.compute_flops_per_token is usual) is counted
