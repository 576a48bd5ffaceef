"""Preflight builds the trainer: what TRL, transformers, accelerate and peft refuse ends before any GPU is taken.

Each case was seen to pass preflight, and to fail on GPUs in one attempt after another.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from transformers import CONFIG_MAPPING, AttentionInterface  # noqa: E402

from gymtrain_api.wiring import Finding  # noqa: E402
from gymtrain_trainer.trl.attention import TREE_ATTENTION  # noqa: E402
from gymtrain_trainer.trl.rehearsal import rehearse  # noqa: E402
from tests.unit.trainer.test_trainer_settings import spec  # noqa: E402

pytestmark = pytest.mark.torch

CONFIG = {"learning_rate": 1e-5, "max_steps": 4, "num_generations": 4, "per_device_train_batch_size": 4}


@pytest.fixture(autouse=True)
def attention_afterwards() -> Iterator[None]:
    """A rehearsal leaves its attention behind; tests that train follow in this process."""
    before = AttentionInterface().get(TREE_ATTENTION)
    yield
    if before is not None:
        AttentionInterface.register(TREE_ATTENTION, before)


def refused(
    folder: Path, config: dict[str, Any] | None = None, lora: dict[str, Any] | None = None, **trainer: Any
) -> list[Finding]:
    source = {"source": "pvc://models/tiny"} | ({"lora": lora} if lora is not None else {})
    findings, warnings = rehearse(spec(CONFIG | (config or {}), model=source, trainer=trainer), folder)
    assert warnings == []
    return findings


def model_of(kind: str, tokenizer: Path, folder: Path, **config: Any) -> Path:
    """A model folder of another kind, with config and tokenizer only: no weights are needed."""
    folder.mkdir()
    for file in tokenizer.iterdir():
        if file.name.startswith("tokenizer") or file.name == "special_tokens_map.json":
            (folder / file.name).write_bytes(file.read_bytes())
    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 2, "eos_token_id": 1}
    made = CONFIG_MAPPING[kind](**(small | config))
    made.architectures = [type(made).__name__.removesuffix("Config").removesuffix("Text") + "ForCausalLM"]
    made.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("config", "trainer", "where", "said"),
    [
        ({"report_to": ["comet_ml"]}, {}, "report_to", "requires comet-ml"),
        ({"optim": "adamw_bnb_8bit"}, {}, "optim", "bitsandbytes"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, {}, "lr_scheduler", "min_lr"),
        ({"fsdp": True}, {}, "fsdp", "only works in distributed training"),
        (
            {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"]}},
            {"processesPerNode": 2},
            "fsdp_config",
            "Could not find the transformer layer class Qwen2DecoderLayer",
        ),
        ({"model_init_kwargs": {"attn_implementation": "sdpa"}}, {}, "model_init_kwargs", "attn_implementation"),
    ],
)
def test_what_a_constructor_refuses_is_a_finding_at_its_setting(
    config: dict[str, Any],
    trainer: dict[str, Any],
    where: str,
    said: str,
    tiny_model: Path,
) -> None:
    (finding,) = refused(tiny_model, config, **trainer)
    assert finding.where.startswith(f"spec.trainer.config{'.' if where else ''}{where}")
    assert said in finding.message


def test_an_adapter_of_modules_that_the_model_lacks_is_refused(tiny_model: Path) -> None:
    (finding,) = refused(tiny_model, lora={"r": 4, "target_modules": ["query_key_value"]})
    assert finding.where == "spec.model.lora.target_modules"
    assert "'query_key_value'} not found in the base model" in finding.message


@pytest.mark.parametrize(
    ("config", "lora", "trainer"),
    [
        ({}, None, {}),
        ({}, {"r": 4, "target_modules": ["q_proj", "v_proj"]}, {}),
        ({"bf16": True, "gradient_checkpointing": True, "tf32": True}, None, {"gpus": 8, "processesPerNode": 8}),
        ({"fp16": True, "bf16": False}, None, {"gpus": 1}),
        ({"ddp_backend": "nccl"}, None, {"gpus": 2, "processesPerNode": 2}),
        (
            {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}},
            None,
            {"gpus": 8, "processesPerNode": 8, "nodes": 2},
        ),
        ({"num_train_epochs": 1, "max_steps": -1}, None, {}),
        ({"report_to": "none"}, None, {}),
    ],
)
def test_what_the_pods_take_passes(
    config: dict[str, Any],
    lora: dict[str, Any] | None,
    trainer: dict[str, Any],
    tiny_model: Path,
) -> None:
    assert refused(tiny_model, config, lora, **trainer) == []


@pytest.mark.parametrize(
    ("kind", "config", "said"),
    [
        ("qwen3_next", {"layer_types": ["linear_attention", "full_attention"] * 2}, "linear_attention"),
        ("gpt_oss", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}, "sinks"),
        ("gemma2", {"head_dim": 16, "attn_logit_softcapping": 50.0}, "soft-capped"),
        ("deepseek_v3", {"num_key_value_heads": 2, "first_k_dense_replace": 4}, "values of width"),
        ("mamba", {"state_size": 4}, "attention"),
    ],
)
def test_a_model_whose_attention_can_not_be_trained_is_refused(
    kind: str,
    config: dict[str, Any],
    said: str,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    folder = model_of(kind, tiny_model, tmp_path / "model", **config)
    (finding,) = refused(folder, gpus=1)
    assert said in finding.message


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("llama", {}),
        ("qwen2", {}),
        ("gemma3_text", {"head_dim": 16}),
        ("mistral", {"sliding_window": 4}),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}),
    ],
)
def test_usual_models_pass(kind: str, config: dict[str, Any], tiny_model: Path, tmp_path: Path) -> None:
    assert refused(model_of(kind, tiny_model, tmp_path / "model", **config), gpus=1) == []


def test_heads_wider_than_the_gpus_kernel_takes_are_refused_on_gpus_alone(
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    folder = model_of("llama", tiny_model, tmp_path / "model", head_dim=512)
    (finding,) = refused(folder, gpus=1)
    assert "heads of width 512" in finding.message
    assert refused(folder) == []
    assert refused(folder, {"bf16": False}, gpus=1) == []


def test_an_attempt_that_gets_there_is_refused_for_good(tiny_model: Path, tmp_path: Path) -> None:
    from gymtrain_trainer.errors import SettingsError
    from gymtrain_trainer.trl.refusals import refusals_named
    from gymtrain_trainer.trl.settings import StepSettings, trl_arguments
    from gymtrain_trainer.trl.trainer import build_trainer

    run = spec(CONFIG | {"report_to": ["comet_ml"]})
    arguments, steps = trl_arguments(run, folder=tmp_path, steps=1), StepSettings.of(run)
    with (
        pytest.raises(SettingsError, match=r"spec\.trainer\.config\.report_to: .* requires comet-ml"),
        refusals_named(run),
    ):
        build_trainer(arguments, tiny_model, callbacks=[], steps=steps)


def test_the_model_folder_needs_no_weights(tiny_model: Path, tmp_path: Path) -> None:
    folder = model_of("qwen3", tiny_model, tmp_path / "model", head_dim=16)
    assert not list(folder.glob("*.safetensors"))
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    assert refused(folder) == []
