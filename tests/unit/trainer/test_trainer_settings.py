"""What TRL's config is made of, and what the rest of the trainer learns of it."""

from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_trainer.errors import SettingsError
from gymtrain_trainer.evaluation.schedule import check_evaluation, is_due, missed, saves
from gymtrain_trainer.framework import Steps, TrainingSettings
from gymtrain_trainer.trl.config_checks import check_keys, check_timeout
from gymtrain_trainer.trl.settings import Batch, max_steps, training_settings, trl_arguments

READ_ONCE = {"cpu_ram_efficient_loading": True}
SHARED_OUT = {"state_dict_type": "SHARDED_STATE_DICT"}


def spec(config: dict[str, Any] | None = None, **parts: Any) -> GymTrainingRunSpec:
    trainer = {"config": config or {}} | parts.pop("trainer", {})
    return GymTrainingRunSpec.model_validate(
        {
            "model": {"source": "hf://org/name"},
            "gym": {"configPaths": ["a.yaml"]},
            "data": {"train": [{"source": "gym://a.jsonl"}]},
            "trainer": trainer,
        }
        | parts
    )


def arguments(run: GymTrainingRunSpec) -> dict[str, Any]:
    return trl_arguments(run, folder=Path("/gymtrain/checkpoints/x"), steps=3)


def test_a_step_is_batch_times_processes_times_accumulation() -> None:
    run = spec(
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        trainer={"nodes": 3, "processesPerNode": 8},
    )
    assert Batch.of(run).samples_per_step == 4 * 2 * 24


def test_users_settings_win_over_ours() -> None:
    assert arguments(spec({"save_total_limit": 9}))["save_total_limit"] == 9


def test_what_other_fields_say_wins_over_the_config() -> None:
    made = arguments(spec({"max_staleness": 99, "output_dir": "/x"}, rollout={"maxStaleness": 2}))
    assert made["max_staleness"] == 2
    assert made["output_dir"] == "/gymtrain/checkpoints/x"


def test_a_cpu_run_switches_off_what_needs_a_gpu() -> None:
    made = arguments(spec())
    assert (made["use_cpu"], made["bf16"], made["gradient_checkpointing"]) == (True, False, False)


def test_a_gpu_run_keeps_trls_defaults() -> None:
    made = arguments(spec(trainer={"gpus": 1}))
    assert made["use_cpu"] is False
    assert "bf16" not in made


@pytest.mark.parametrize(
    ("sharding", "passed"),
    [
        (None, READ_ONCE | SHARED_OUT),
        ({"version": 2}, READ_ONCE | SHARED_OUT | {"version": 2}),
        ({"cpu_ram_efficient_loading": False}, SHARED_OUT | {"cpu_ram_efficient_loading": False}),
        ({"fsdp_cpu_ram_efficient_loading": "false"}, SHARED_OUT | {"fsdp_cpu_ram_efficient_loading": "false"}),
        ({"fsdp_state_dict_type": "FULL_STATE_DICT"}, READ_ONCE | {"fsdp_state_dict_type": "FULL_STATE_DICT"}),
        ("/config/fsdp.json", "/config/fsdp.json"),
    ],
)
def test_one_process_reads_a_sharded_model_and_each_saves_its_share_unless_the_run_says_otherwise(
    sharding: Any, passed: Any
) -> None:
    assert arguments(spec({"fsdp": True, "fsdp_config": sharding}))["fsdp_config"] == passed


@pytest.mark.parametrize(
    ("config", "trainer", "kind"),
    [
        ({}, {"nodes": 2}, "without trainer.config.fsdp"),
        ({"fsdp": True}, {"nodes": 2}, "with trainer.config.fsdp and state_dict_type: SHARDED_STATE_DICT"),
        ({"fsdp": True}, {"gpus": 1}, "with trainer.config.fsdp and state_dict_type: SHARDED_STATE_DICT"),
        ({"fsdp": True}, {}, "without trainer.config.fsdp"),
        (
            {"fsdp": True, "fsdp_config": {"fsdp_state_dict_type": "FULL_STATE_DICT"}},
            {"nodes": 2},
            "with trainer.config.fsdp and state_dict_type: FULL_STATE_DICT",
        ),
        ({"fsdp": True, "fsdp_config": "/config/fsdp.json"}, {"nodes": 2}, ""),
    ],
)
def test_a_checkpoint_is_of_a_kind(config: dict[str, Any], trainer: dict[str, Any], kind: str) -> None:
    assert training_settings(spec(config, trainer=trainer | {"config": config}), None).checkpoint_kind == kind


def test_checkpoints_of_the_model_alone_are_not_sharded_which_transformers_refuses() -> None:
    assert arguments(spec({"fsdp": True, "save_only_model": True}))["fsdp_config"] == READ_ONCE


def test_a_model_that_is_not_sharded_has_no_settings_of_sharding() -> None:
    assert "fsdp_config" not in arguments(spec())
    assert arguments(spec({"fsdp": False, "fsdp_config": {"version": 2}}))["fsdp_config"] == {"version": 2}


def test_checkpoints_are_written_only_where_a_volume_keeps_them() -> None:
    assert arguments(spec())["save_strategy"] == "no"
    assert arguments(spec(trainer={"checkpoint": {"size": "1Gi"}}))["save_strategy"] == "steps"


def test_epochs_become_steps_once_the_rows_are_known() -> None:
    run = spec({"num_train_epochs": 2, "num_generations": 8, "per_device_train_batch_size": 16})
    assert max_steps(run, None) is None
    assert max_steps(run, 100) == 100


def test_max_steps_wins_over_epochs() -> None:
    assert max_steps(spec({"max_steps": 7, "num_train_epochs": 2}), 100) == 7


def test_neither_steps_nor_epochs_means_no_end() -> None:
    assert max_steps(spec(), 100) is None


def test_the_rest_of_the_trainer_learns_what_the_config_means() -> None:
    config = {
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "num_train_epochs": 1,
        "weight_sync_steps": 2,
        "fork_threshold_tokens": 0,
        "temperature": 0.7,
        "max_completion_length": 64,
        "seed": 7,
    }
    assert training_settings(spec(config), 10) == TrainingSettings(
        group_size=4,
        groups_per_step=2,
        max_sample_tokens=None,
        max_steps=5,
        sync_every_steps=2,
        fork_threshold=0,
        temperature=0.7,
        max_completion_tokens=64,
        seed=7,
        checkpoint_kind="without trainer.config.fsdp",
    )


def test_a_training_without_an_end_is_refused_once_the_rows_are_known() -> None:
    assert training_settings(spec(), None).max_steps is None
    with pytest.raises(SettingsError, match="neither max_steps nor num_train_epochs"):
        training_settings(spec(), 100)


VALIDATION = {"train": [{"source": "gym://a.jsonl"}], "validation": [{"source": "gym://b.jsonl"}]}


def test_other_ranks_wait_for_an_evaluation_too() -> None:
    without = arguments(spec())["ddp_timeout"]
    made = spec(data=VALIDATION, evaluation={"timeoutSeconds": 5000})
    assert arguments(made)["ddp_timeout"] == without + 5000


def found(config: dict[str, Any] | None = None, **evaluation: Any) -> list[str]:
    run = spec(config, data=VALIDATION, evaluation=evaluation)
    return [finding.where for finding in check_evaluation(run, training_settings(run, None))]


def test_evaluations_need_weights_that_vllm_gets() -> None:
    assert found({"max_steps": 40, "weight_sync_steps": 4}, everySteps=8) == []
    assert found({"max_steps": 40, "weight_sync_steps": 4}, everySteps=6) == ["spec.evaluation.everySteps"]
    assert found({"max_steps": 41, "weight_sync_steps": 4}, everySteps=0) == ["spec.evaluation.atEnd"]
    assert found({"max_steps": 41, "weight_sync_steps": 4}, everySteps=0, atEnd=False) == []


@pytest.mark.parametrize(("temperature", "fits"), [("0", True), ("0.01", True), ("2", True), ("0.005", False)])
def test_evaluations_are_sampled_as_vllm_can(temperature: str, fits: bool) -> None:
    assert (found(temperature=temperature) == []) == fits


def test_steps_are_evaluated_and_saved_by_the_same_rule_on_every_rank() -> None:
    run = spec(data=VALIDATION, evaluation={"everySteps": 4}, trainer={"checkpoint": {"size": "1Gi"}})
    assert [n for n in range(11) if saves(run, Steps(n, 10), 2)] == [4, 8, 10]
    last = spec(data=VALIDATION, evaluation={"everySteps": 0})
    assert last.evaluates is not None
    assert [n for n in range(11) if is_due(last.evaluates, Steps(n, 10), 2)] == [10]
    assert not any(saves(last, Steps(n, 10), 2) for n in range(11)), "there is no volume"


def test_a_collective_that_an_evaluation_outlasts_is_found() -> None:
    both = {"processesPerNode": 2}
    short = spec({"ddp_timeout": 600}, data=VALIDATION, trainer=both)
    assert [finding.where for finding in check_timeout(short)] == ["spec.trainer.config.ddp_timeout"]
    assert check_timeout(spec({"ddp_timeout": 600}, data=VALIDATION)) == [], "nobody waits"
    assert check_timeout(spec({"ddp_timeout": 9000}, data=VALIDATION, trainer=both)) == []


@pytest.mark.parametrize(
    "key", ["eval_strategy", "eval_steps", "eval_on_start", "per_device_eval_batch_size", "load_best_model_at_end"]
)
def test_trls_own_evaluation_is_refused_with_the_field_to_use(key: str) -> None:
    (finding,) = check_keys({key: 1}, {key})
    assert "spec.evaluation." in finding.message


def test_an_evaluation_that_was_cut_off_is_missed_until_there_is_one_as_late() -> None:
    run = spec(data=VALIDATION, evaluation={"everySteps": 4})
    assert run.evaluates is not None

    def misses(step: int, *known: int) -> bool:
        assert run.evaluates is not None
        return missed(run.evaluates, Steps(step, 10), 1, known)

    assert [misses(4, 0), misses(5, 0), misses(9, 0, 4)] == [True, True, True]
    assert [misses(3, 0), misses(4, 0, 4), misses(7, 0, 5), misses(0)] == [False] * 4
    assert [misses(10, 0, 4, 8), misses(10, 10)] == [True, False], "the last one is due at the end"
