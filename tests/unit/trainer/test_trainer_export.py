"""The final model: its type, its files, and that libraries load it. Of two processes: test_trainer_sharded.py."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM  # noqa: E402

from gymtrain_trainer.stopping import StopSignal  # noqa: E402
from gymtrain_trainer.trl import export  # noqa: E402
from gymtrain_trainer.trl.export import export_adapter, export_model, export_type  # noqa: E402
from tests.unit.trainer.trainer_agent import AgentThread  # noqa: E402
from tests.unit.trainer.trainer_vllm import VLLM, make_context, run_process  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def check_exported(folder: Path, source: Path, trained: dict[str, Any], dtype: Any) -> None:
    """`folder` has the weights `trained`, which are float32, as `dtype`, and what else `source` has; it is loaded."""
    weights = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    assert weights.keys() == load_file(source / "model.safetensors").keys(), "tied weights are there once"
    for name, tensor in weights.items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, trained[name].to(dtype)), name
    said, came = (json.loads((at / "config.json").read_text()) for at in (folder, source))
    key = "torch_dtype" if "torch_dtype" in came else "dtype"
    assert said == came | {key: str(dtype).removeprefix("torch.")}
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (source / name).exists():
            assert (folder / name).read_bytes() == (source / name).read_bytes()
    loaded, information = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not any(information.values()), information
    assert loaded.dtype == dtype
    assert torch.equal(loaded.model.norm.weight, trained["model.norm.weight"].to(dtype))
    assert AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("t7") == 7


@pytest.mark.parametrize(
    ("came", "stated", "dtype"),
    [
        ("bfloat16", "auto", torch.bfloat16),
        ("float32", "auto", torch.float32),
        ("bfloat16", "float32", torch.float32),
        ("float32", "float16", torch.float16),
    ],
)
def test_the_final_model_has_the_type_that_the_run_states_or_that_the_model_came_in(
    tmp_path: Path,
    tiny_models: Callable[..., Path],
    served: AgentThread,
    monkeypatch: pytest.MonkeyPatch,
    came: str,
    stated: str,
    dtype: Any,
) -> None:
    source = tiny_models(came)
    (source / "chat_template.jinja").write_text(TEMPLATE)
    vllm = VLLM(source)
    served.agent.behaviour = vllm.answer
    spec = {"model": {"source": "pvc://models/tiny", "dtype": stated}}
    made = make_context(tmp_path, source, served.agent.url, spec, max_steps=2)
    run_process(made, vllm, StopSignal(), monkeypatch.setattr)
    checkpoint = load_file(made.run_folder / "checkpoint-2" / "model.safetensors")
    assert {tensor.dtype for tensor in checkpoint.values()} == {torch.float32}, "resuming is exact"
    check_exported(made.run_folder / "model", source, checkpoint, dtype)


def trainer_of(model: Any) -> Any:
    """What stands for TRL's."""
    accelerator = SimpleNamespace(
        unwrap_model=lambda model, keep_torch_compile: model, is_main_process=True, device=torch.device("cpu")
    )
    return SimpleNamespace(model=model, accelerator=accelerator)


def test_a_large_model_is_exported_in_several_files(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_SHARD_SIZE", "20KB")
    model = Qwen3ForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    export_model(trainer_of(model), tmp_path / "out", tiny_model, torch.bfloat16)
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 1
    check_exported(tmp_path / "out", tiny_model, dict(model.named_parameters()), torch.bfloat16)


def test_no_weights_of_the_first_model_are_copied(tmp_path: Path, tiny_model: Path) -> None:
    source = tmp_path / "source"
    model = Qwen3ForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model.save_pretrained(source, max_shard_size="20KB")
    for name in ("pytorch_model.bin", "consolidated.00.pth", ".hidden.json", "modeling_own.py", "merges.txt"):
        (source / name).write_text("first")
    export_model(trainer_of(model), tmp_path / "out", source, torch.float32)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        "generation_config.json",
        "merges.txt",
        "model.safetensors",
        "modeling_own.py",
    }


def test_buffers_keep_the_type_that_the_model_gives_them(tmp_path: Path, tiny_model: Path) -> None:
    model = Qwen3ForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model.model.norm.register_buffer("count", torch.ones(2))
    export_model(trainer_of(model), tmp_path / "out", tiny_model, torch.bfloat16)
    assert load_file(tmp_path / "out" / "model.safetensors")["model.norm.count"].dtype == torch.float32


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({"torch_dtype": "float16"}, torch.float16),
        ({"text_config": {"torch_dtype": "bfloat16"}}, torch.bfloat16),
        ({"dtype": None}, torch.float32),
        ({}, torch.float32),
        ({"dtype": "float8_e4m3fn"}, torch.float32),
    ],
)
def test_the_type_that_a_model_came_in_is_that_of_its_config(
    tmp_path: Path, config: dict[str, Any], dtype: Any
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert export_type("auto", tmp_path) == dtype
    assert export_type("float16", tmp_path) == torch.float16


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"torch_dtype": "float32", "x": 1}, {"torch_dtype": "bfloat16", "x": 1}),
        ({"dtype": None}, {"dtype": "bfloat16"}),
        ({"x": 1}, {"x": 1, "torch_dtype": "bfloat16"}),
        (
            {"dtype": "float32", "text_config": {"dtype": "float32"}},
            {"dtype": "bfloat16", "text_config": {"dtype": "bfloat16"}},
        ),
    ],
)
def test_the_exported_config_says_the_type_wherever_the_first_one_did(
    tmp_path: Path, tiny_model: Path, config: dict[str, Any], said: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = Qwen3ForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    export_model(trainer_of(model), tmp_path / "out", tmp_path, torch.bfloat16)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == said


@pytest.mark.parametrize("targets", [["q_proj"], ["q_proj", "embed_tokens"]])
def test_an_adapter_is_exported_as_peft_writes_it(tmp_path: Path, tiny_model: Path, targets: list[str]) -> None:
    from peft import LoraConfig, get_peft_model

    model = Qwen3ForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=targets, modules_to_save=["norm"]))
    trainer = trainer_of(adapted)
    trainer.processing_class = AutoTokenizer.from_pretrained(tiny_model)
    export_adapter(trainer, tmp_path / "ours")
    adapted.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / at / "adapter_model.safetensors") for at in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (tmp_path / "ours" / "tokenizer.json").exists()
