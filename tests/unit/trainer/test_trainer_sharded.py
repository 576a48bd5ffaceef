"""A model that FSDP shards over two processes: who reads it, what trains, and what is exported.

On the CPU, or on two GPUs where there are two.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from safetensors.torch import load_file  # noqa: E402

from tests.unit.trainer.test_trainer_export import check_exported  # noqa: E402
from tests.unit.trainer.test_trainer_ranks import GPUS, LORA, SAME, SHARDED, train_ranks  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

RATE = 1e-4
"""Learning rate. AdamW's first step moves a weight by this at most, and weights are some 0.02."""


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_one_process_reads_the_weights_and_both_train_them(
    tmp_path: Path, tiny_models: Callable[..., Path], without_weights: Callable[[Path], Path], tied: bool
) -> None:
    model = tiny_models(tie_word_embeddings=tied)
    others = {"MODEL_OF_OTHERS": str(without_weights(model))}
    codes, _ = train_ranks(tmp_path, model, {}, others, **SHARDED, learning_rate=RATE, max_steps=1)
    assert codes == [0, 0]
    before, after = load_file(model / "model.safetensors"), load_file(tmp_path / "sent.safetensors")
    assert before.keys() == after.keys()
    for name, weights in before.items():
        moved = (after[name] - weights).abs()
        assert moved.max() <= 1.01 * RATE, f"{name} isn't what was read"
        for rank, share in enumerate(moved.chunk(2)):
            assert share.max() > 0, f"rank {rank} doesn't train {name}"


def test_one_process_reads_the_weights_and_both_train_an_adapter(
    tmp_path: Path, tiny_model: Path, without_weights: Callable[[Path], Path]
) -> None:
    others = {"MODEL_OF_OTHERS": str(without_weights(tiny_model))}
    codes, _ = train_ranks(tmp_path, tiny_model, {"model": LORA}, others, **SHARDED, learning_rate=1e-3, max_steps=2)
    assert codes == [0, 0]
    assert float((tmp_path / "parity").read_text()) < SAME
    before, after = load_file(tiny_model / "model.safetensors"), load_file(tmp_path / "sent.safetensors")
    for name, weights in before.items():
        for rank, (was, now) in enumerate(zip(weights.chunk(2), after[name].chunk(2), strict=True)):
            trained = any(target in name for target in LORA["lora"]["target_modules"])
            assert torch.equal(was, now) != trained, f"{name} at rank {rank}"
            assert (was - now).abs().max() < 0.005


def test_each_process_reads_the_weights_where_the_run_says_so(
    tmp_path: Path, tiny_model: Path, without_weights: Callable[[Path], Path]
) -> None:
    others = {"MODEL_OF_OTHERS": str(without_weights(tiny_model))}
    sharding = SHARDED["fsdp_config"] | {"cpu_ram_efficient_loading": False}
    codes, checkpoint = train_ranks(tmp_path, tiny_model, {}, others, fsdp=True, fsdp_config=sharding)
    assert (codes, checkpoint) == ([1, 1], None), "the other finds none"


@pytest.mark.parametrize("kind", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_the_final_model_of_two_processes_has_the_type_that_it_came_in(
    tmp_path: Path, tiny_models: Callable[..., Path], kind: str
) -> None:
    model = tiny_models("bfloat16")
    sharding = {"fsdp": True, "fsdp_config": SHARDED["fsdp_config"] | {"state_dict_type": kind}}
    codes, _ = train_ranks(tmp_path, model, {}, **sharding)
    assert codes == [0, 0]
    check_exported(tmp_path / "checkpoints" / "model", model, load_file(tmp_path / "sent.safetensors"), torch.bfloat16)


def test_the_adapter_of_two_processes_is_exported_as_peft_writes_it(tmp_path: Path, tiny_model: Path) -> None:
    sharding = SHARDED["fsdp_config"] | {"state_dict_type": "FULL_STATE_DICT"}  # so a checkpoint has peft's files
    codes, checkpoint = train_ranks(tmp_path, tiny_model, {"model": LORA}, fsdp=True, fsdp_config=sharding)
    assert codes == [0, 0]
    folders = tmp_path / "checkpoints" / "model", checkpoint.folder
    exported, kept = (load_file(folder / "adapter_model.safetensors") for folder in folders)
    assert exported.keys() == kept.keys()
    assert all(torch.equal(exported[name], kept[name]) for name in kept)
    settings = [(folder / "adapter_config.json").read_text() for folder in folders]
    assert settings[0] == settings[1]


@pytest.mark.parametrize(("spec", "config"), [({}, "config.json"), ({"model": LORA}, "adapter_config.json")])
def test_a_checkpoint_has_the_share_of_each_process_once_and_another_number_resumes_from_it(
    tmp_path: Path, tiny_model: Path, spec: dict[str, Any], config: str
) -> None:
    codes, checkpoint = train_ranks(tmp_path, tiny_model, spec, **SHARDED, max_steps=8, save_steps=8)
    assert (codes, checkpoint.state.step) == ([0, 0], 8)
    files = {str(file.relative_to(checkpoint.folder)) for file in checkpoint.folder.rglob("*") if file.is_file()}
    shares = {f"{part}_0/__{rank}_0.distcp" for part in ("pytorch_model_fsdp", "optimizer") for rank in range(2)}
    assert shares | {config, "tokenizer.json"} <= files
    assert not [name for name in files if name.endswith((".safetensors", ".bin", "optimizer.pt"))]
    before, saved = load_file(tiny_model / "model.safetensors"), load_file(tmp_path / "sent.safetensors")

    processes = 2 if GPUS else 3
    codes, checkpoint = train_ranks(tmp_path, tiny_model, spec, **SHARDED, max_steps=9, processes=processes)
    assert (codes, checkpoint.state.step) == ([0] * processes, 9)
    for name, weights in load_file(tmp_path / "sent.safetensors").items():
        moved = (saved[name] - before[name]).abs().mean()
        assert (weights - saved[name]).abs().mean() <= moved / 2, f"{name}: one step on is nearer than eight steps back"
