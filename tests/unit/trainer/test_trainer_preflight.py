"""Preflight's findings, as a user reads them. TRL's class itself is asked in test_trainer_trl.py."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gymtrain_api.wiring import Finding
from gymtrain_trainer.fetch import fetch
from gymtrain_trainer.preflight.model_folder import check_model_folder
from gymtrain_trainer.trl import settings
from gymtrain_trainer.trl.config_checks import check_batch, check_keys, check_sharding, check_types
from tests.unit.trainer.test_trainer_settings import spec

VALID = {"learning_rate", "max_steps", "num_generations", "max_staleness", "save_steps", "temperature"} | {
    *settings.NEUTRAL_SAMPLING
}


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_an_unknown_key_is_told_the_nearest_valid_one() -> None:
    finding = only(check_keys({"learning_rat": 1e-5}, VALID))
    assert finding.where == "spec.trainer.config.learning_rat"
    assert "did you mean learning_rate?" in finding.message


def test_a_key_that_the_run_sets_is_told_the_field() -> None:
    assert "spec.rollout.maxStaleness" in only(check_keys({"max_staleness": 2}, VALID)).message


def test_a_near_miss_of_a_key_that_the_run_sets_is_not_offered_it() -> None:
    assert "max_staleness" not in only(check_keys({"max_stalenes": 2}, VALID)).message


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        ("top_p", 0.999, "1"),
        ("top_p", 0, "1"),
        ("top_k", 20, "0"),
        ("min_p", 0.05, "0"),
        ("repetition_penalty", 1.05, "1"),
    ],
)
def test_sampling_from_less_than_the_trainer_scores_is_refused(key: str, value: float, instead: str) -> None:
    finding = only(check_keys({key: value}, VALID))
    assert finding.where == f"spec.trainer.config.{key}"
    assert f"set {instead} or leave it out: the trainer scores the whole vocabulary" in finding.message


@pytest.mark.parametrize(
    ("key", "value"), [("top_p", 1), ("top_p", 1.0), ("top_k", 0), ("min_p", None), ("min_p", 0.0)]
)
def test_sampling_from_the_whole_vocabulary_may_be_said(key: str, value: float | None) -> None:
    assert check_keys({key: value}, VALID) == []


@pytest.mark.parametrize(
    ("value", "fits"), [(0, False), (0.001, False), (0.01, True), (1, True), (2.0, True), (2.1, False)]
)
def test_the_temperature_is_one_that_vllm_samples_with(value: float, fits: bool) -> None:
    findings = check_keys({"temperature": value}, VALID)
    assert (findings == []) is fits


def test_a_batch_that_splits_groups_is_told_the_next_that_do_not() -> None:
    finding = only(
        check_batch(
            spec({"max_steps": 1, "num_generations": 8, "per_device_train_batch_size": 6}, trainer={"nodes": 2})
        )
    )
    assert finding.where == "spec.trainer.config.per_device_train_batch_size"
    assert "6 (per_device_train_batch_size) x 2 (processes) x 1" in finding.message
    assert "8 or 16 would do" in finding.message


def test_accumulation_can_complete_a_group() -> None:
    config = {"max_steps": 1, "num_generations": 8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    assert check_batch(spec(config)) == []


@pytest.mark.parametrize(("staleness", "budget", "refused"), [(0, 1024, True), (1, 1024, False), (0, 0, False)])
def test_on_policy_a_step_of_tokens_is_refused(staleness: int, budget: int, refused: bool) -> None:
    run = spec({"max_steps": 1, "token_budget": budget}, rollout={"maxStaleness": staleness})
    assert [finding.where for finding in check_batch(run)] == (["spec.rollout.maxStaleness"] if refused else [])


@pytest.mark.parametrize(
    ("config", "refused"),
    [({"loss_type": "dapo", "scale_rewards": "none"}, []), ({"loss_type": "ppo"}, ["spec.trainer.config.loss_type"])],
)
def test_the_losses_of_grpoconfig_are_taken_by_their_names(config: dict[str, Any], refused: list[str]) -> None:
    found = check_keys(config, VALID)
    assert [finding.where for finding in found] == refused
    assert all("one of bnpo, dapo, grpo, dr_grpo" in finding.message for finding in found)


def test_a_run_without_an_end_is_refused() -> None:
    assert "when does training end?" in only(check_batch(spec({}))).message


def test_a_group_of_one_is_refused() -> None:
    assert "at least 2" in only(check_batch(spec({"max_steps": 1, "num_generations": 1}))).message


@pytest.mark.parametrize("version", [1, "1"])
def test_the_first_version_of_fsdp_is_refused(version: object) -> None:
    finding = only(check_sharding({"fsdp": True, "fsdp_config": {"version": version}}))
    assert finding.where == "spec.trainer.config.fsdp_config"
    assert "leave version out" in finding.message


@pytest.mark.parametrize("sharding", [{}, {"version": 2}, {"transformer_layer_cls_to_wrap": ["X"]}])
def test_the_second_version_of_fsdp_is_taken(sharding: dict[str, Any]) -> None:
    assert check_sharding({"fsdp": True, "fsdp_config": sharding}) == []


@pytest.mark.parametrize(("value", "fits"), [(1e-5, True), (1, True), ("1e-5", False), (None, False), (True, False)])
def test_a_number_is_a_number(value: Any, fits: bool) -> None:
    findings = check_types({"learning_rate": value}, {"learning_rate": float})
    assert (findings == []) is fits


@pytest.mark.parametrize(("value", "fits"), [(True, True), (False, True), ("full_shard", True), (1, False)])
def test_sharding_is_switched_on_by_true(value: Any, fits: bool) -> None:
    """transformers annotates it as text, for its command line."""
    assert (check_types({"fsdp": value}, {"fsdp": str | None}) == []) is fits


def test_a_wrong_type_shows_what_was_given() -> None:
    finding = only(check_types({"learning_rate": "1e-5"}, {"learning_rate": float}))
    assert finding.message == 'expected float, got "1e-5" (str)'


# --- the model's folder ---


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that is complete: one tensor of two floats."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    return tmp_path


def problem(folder: Path) -> str:
    finding = only(check_model_folder(folder, "pvc://models/qwen"))
    assert finding.where == "spec.model.source"
    assert finding.message.startswith("pvc://models/qwen: ")
    return finding.message


def test_a_whole_model_has_no_findings(model: Path) -> None:
    assert check_model_folder(model, "x") == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "cannot read" in problem(tmp_path / "nowhere")


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    assert "empty" in problem(tmp_path)


def test_a_missing_config_is_named(model: Path) -> None:
    (model / "config.json").unlink()
    assert "there is no config.json (found: model.safetensors" in problem(model)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"architectures": ["Qwen2_5_VLForConditionalGeneration"], "vision_config": {"depth": 32}}, "vision_config"),
        ({"architectures": ["Qwen2AudioForConditionalGeneration"], "audio_config": {"d_model": 8}}, "audio_config"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "is_encoder_decoder"),
    ],
)
def test_a_model_of_more_than_text_is_refused_with_the_reason(model: Path, config: dict[str, Any], said: str) -> None:
    (model / "config.json").write_text(json.dumps(config))
    assert said in problem(model)


def test_an_empty_part_for_images_is_no_vision_model(model: Path) -> None:
    (model / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "vision_config": null}')
    assert check_model_folder(model, "x") == []


def test_missing_weights_are_named(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert "no weights" in problem(model)


def test_a_hubs_model_that_each_pod_fetches_by_itself_needs_no_weights_in_preflight(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its init container leaves them out, on purpose and with a mark."""
    asked: list[dict[str, Any]] = []
    hub = SimpleNamespace(snapshot_download=lambda repo_id, **more: asked.append(more))
    errors = SimpleNamespace(
        **dict.fromkeys(
            ("GatedRepoError", "HFValidationError", "RepositoryNotFoundError", "RevisionNotFoundError"), OSError
        )
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    (model / "model.safetensors").unlink()
    fetch("org/name", None, model, None, weights=False)
    assert "*.safetensors" in asked[0]["ignore_patterns"]
    assert check_model_folder(model, "hf://org/name") == []
    fetch("org/name", None, model, None)  # the same folder, for pods that load it
    assert "*.safetensors" not in asked[1]["ignore_patterns"]
    assert "no weights" in only(check_model_folder(model, "hf://org/name")).message


def test_gguf_weights_are_told_how_to_convert(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model.gguf")
    assert "gguf_file" in problem(model)


def test_a_missing_shard_is_named(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-2.safetensors"}}')
    assert "model-2.safetensors" in problem(model)


def test_a_cut_off_copy_is_named(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "cut off" in problem(model)


def test_a_git_lfs_pointer_is_named(model: Path) -> None:
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "git lfs pull" in problem(model)


def test_a_tokenizer_without_chat_template_is_named(model: Path) -> None:
    (model / "tokenizer_config.json").write_text("{}")
    assert "chat template" in problem(model)


def test_a_chat_template_of_its_own_file_counts(model: Path) -> None:
    (model / "tokenizer_config.json").write_text("{}")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert check_model_folder(model, "x") == []
