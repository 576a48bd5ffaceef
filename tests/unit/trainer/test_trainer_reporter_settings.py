"""What experiment trackers are told about a run, and what they need from its author."""

import json
from pathlib import Path
from typing import Any

import pytest

from gymtrain_trainer.context import Context
from gymtrain_trainer.monitoring.run_facts import run_facts, shown_spec
from gymtrain_trainer.trl.reporter_settings import check_reporters, environment, run_label
from gymtrain_trainer.trl.settings import trl_arguments
from tests.unit.trainer.test_trainer_entry import context
from tests.unit.trainer.test_trainer_settings import spec


def made(folder: Path, uid: str = "1f2e3d4c-0000", lineage: str = "", **more: Any) -> Context:
    found = context(folder, **more)
    run = found.run.model_copy(update={"uid": uid, "lineage": lineage})
    return Context(run, found.paths, found.attempt, found.nodes, found.node_rank, found.port)


def test_all_attempts_of_a_run_are_one_run_of_the_tracker(tmp_path: Path) -> None:
    first, restored = made(tmp_path), made(tmp_path, uid="other", lineage="1f2e3d4c-0000")
    found = environment(first, {})
    assert (found["WANDB_RUN_ID"], found["WANDB_RESUME"]) == ("1f2e3d4c-0000", "allow")
    assert json.loads(found["MLFLOW_TAGS"])["gymtrain.uid"] == "1f2e3d4c-0000"
    assert environment(restored, {})["WANDB_RUN_ID"] == found["WANDB_RUN_ID"]
    assert run_label(first) == run_label(restored) == f"{first.run.name}-1f2e3d4c"


def test_files_of_trackers_go_to_the_runs_folder(tmp_path: Path) -> None:
    one = made(tmp_path)
    found = environment(one, {})
    assert found["WANDB_DIR"] == str(one.run_folder)
    assert found["TRACKIO_DIR"] == str(one.run_folder / "trackio")
    assert found["MLFLOW_TRACKING_URI"] == (one.run_folder / "mlflow").as_uri()
    assert found["TENSORBOARD_LOGGING_DIR"] == str(one.run_folder / "tensorboard")


def test_the_users_environment_wins_but_for_what_would_upload_models(tmp_path: Path) -> None:
    given = {"WANDB_PROJECT": "mine", "MLFLOW_TRACKING_URI": "http://mlflow:5000", "WANDB_LOG_MODEL": "end"}
    found = environment(made(tmp_path), given | {"MLFLOW_TAGS": '{"team": "red"}', "WANDB_WATCH": "all"})
    assert "WANDB_PROJECT" not in found
    assert "MLFLOW_TRACKING_URI" not in found
    assert (found["WANDB_LOG_MODEL"], found["WANDB_WATCH"]) == ("false", "false")
    assert json.loads(found["MLFLOW_TAGS"])["team"] == "red"


def test_the_run_is_named_unless_its_author_names_it(tmp_path: Path) -> None:
    def arguments(config: dict[str, Any]) -> dict[str, Any]:
        return trl_arguments(spec(config), folder=tmp_path, steps=1, run_name="workplace-1f2e3d4c")

    assert arguments({})["run_name"] == "workplace-1f2e3d4c"
    assert arguments({"run_name": "mine"})["run_name"] == "mine"
    assert arguments({})["project"] == "gymtrain"


def test_what_is_shown_of_a_spec_has_no_secrets() -> None:
    run = spec(
        {"learning_rate": 1.0, "hub_token": "hf_abc"},
        gym={
            "configPaths": ["a.yaml"],
            "env": [{"name": "KEY", "value": "sk-1"}],
            "overrides": {"judge": {"openai_api_key": "sk-2", "max_tokens": 5, "servers": [{"password": "sk-3"}]}},
            "template": {"spec": {"containers": [{"name": "gym", "env": [{"name": "X", "value": "sk-4"}]}]}},
        },
    )
    shown = shown_spec(run)
    assert "sk-" not in json.dumps(shown)
    assert "hf_abc" not in json.dumps(shown)
    assert shown["gym"]["overrides"]["judge"] == {
        "openai_api_key": "***",
        "max_tokens": 5,
        "servers": [{"password": "***"}],
    }
    assert shown["trainer"]["config"]["learning_rate"] == 1.0


def test_the_facts_name_the_run_and_the_libraries(tmp_path: Path) -> None:
    facts = run_facts(made(tmp_path))
    assert facts["uid"] == "1f2e3d4c-0000"
    assert facts["attempt"] == 2
    assert isinstance(facts["versions"], dict)


@pytest.mark.parametrize(
    ("config", "environ", "says"),
    [
        ({"report_to": ["wandb"]}, {}, "WANDB_API_KEY"),
        ({"report_to": "wandb"}, {}, "WANDB_API_KEY"),
        ({"report_to": ["wandb"]}, {"WANDB_API_KEY": "k"}, None),
        ({"report_to": ["wandb"]}, {"WANDB_MODE": "offline"}, None),
        ({"report_to": ["trackio"]}, {}, None),
        ({"report_to": ["trackio"]}, {"TRACKIO_SPACE_ID": "me/space"}, "HF_TOKEN"),
        ({"report_to": ["trackio"], "trackio_space_id": "me/space"}, {"HF_TOKEN": "t"}, None),
        ({"report_to": ["mlflow", "tensorboard"]}, {}, None),
        ({"report_to": 3}, {}, None),
        ({}, {}, None),
    ],
)
def test_a_tracker_that_lacks_its_key_is_found_in_preflight(
    tmp_path: Path, config: dict[str, Any], environ: dict[str, str], says: str | None
) -> None:
    findings = check_reporters(spec(config), environ, tmp_path)
    assert [finding.where for finding in findings] == (["spec.trainer.config.report_to"] if says else [])
    assert all(says and says in finding.message and "secretKeyRef" in finding.message for finding in findings)


def test_a_key_in_a_netrc_counts(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n")
    assert check_reporters(spec({"report_to": ["wandb"]}), {}, tmp_path) == []
