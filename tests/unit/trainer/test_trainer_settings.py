"""What TRL's config is made of, and what the rest of the trainer learns of it."""

from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_trainer.errors import SettingsError
from gymtrain_trainer.framework import TrainingSettings
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
