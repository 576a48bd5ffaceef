"""Preflight's checks of an adapter's settings."""

from typing import Any

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_trainer.trl import settings
from gymtrain_trainer.trl.lora_checks import check_keys, check_lora, check_servable
from tests.support.specs import smallest_run

KEYS = {"r", "lora_alpha", "target_modules", "task_type", "use_dora"}


def spec(**lora: Any) -> GymTrainingRunSpec:
    model = {"source": "hf://Qwen/Qwen3-0.6B", "lora": lora}
    run = smallest_run(model=model, trainer={"checkpoint": {"size": "1Gi"}})
    return GymTrainingRunSpec.model_validate(run["spec"])


def test_a_misspelled_setting_is_named_with_the_nearest_valid_one() -> None:
    (finding,) = check_keys({"lora_alfa": 32}, KEYS)
    assert (finding.where, finding.message) == (
        "spec.model.lora.lora_alfa",
        "peft's LoraConfig has no such setting; did you mean lora_alpha?",
    )


def test_settings_that_the_trainer_decides_are_refused() -> None:
    (finding,) = check_keys({"task_type": "SEQ_CLS"}, KEYS)
    assert 'must be CAUSAL_LM here, got "SEQ_CLS"' in finding.message


@pytest.mark.parametrize(
    ("lora", "where"),
    [
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target_modules"),
        ({"target_modules": ".*embed_tokens"}, "target_modules"),
        ({"r": 1024}, "r"),
        ({"r": 8, "rank_pattern": {"q_proj": 1024}}, "r"),
    ],
)
def test_what_vllm_cannot_serve_as_an_adapter_is_named_with_a_way_out(lora: dict[str, Any], where: str) -> None:
    (finding,) = check_servable(lora)
    assert finding.where == f"spec.model.lora.{where}"
    assert "spec.weightSync.transport" in finding.message


def test_usual_settings_are_servable() -> None:
    assert check_servable({"r": 16, "lora_alpha": 32, "target_modules": ["q_proj"], "bias": "none"}) == []


def test_without_an_adapter_nothing_is_checked() -> None:
    run = GymTrainingRunSpec.model_validate(smallest_run()["spec"])
    assert check_lora(run) == []
    assert settings.lora_arguments(run) is None


def test_peft_gets_the_users_settings() -> None:
    assert settings.lora_arguments(spec(r=4)) == {"task_type": "CAUSAL_LM", "r": 4}


@pytest.mark.torch
def test_peft_itself_has_the_last_word() -> None:
    pytest.importorskip("peft")
    assert check_lora(spec(r=4, target_modules=["q_proj"])) == []
    (unknown,) = check_lora(spec(r=4, target_module=["q_proj"]))
    assert "did you mean target_modules?" in unknown.message
    (refused,) = check_lora(spec(r=4, layers_pattern="layers"))
    assert "peft refuses it" in refused.message
