"""Datasets that the Gym config itself lists: spec.data left out, `fromGym`, and the agents of gym:// files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gymtrain_api.wiring import DataIndex, RunConfig
from gymtrain_gym import data, preflight
from gymtrain_gym.datasets.preparation import Folders

pytestmark = pytest.mark.gym

type MakeRun = Callable[..., RunConfig]

WORKPLACE = "resources_servers/workplace_assistant/configs/workplace_assistant.yaml"
OTHER = "resources_servers/example_single_tool_call/configs/example_single_tool_call.yaml"
REASONING = "resources_servers/reasoning_gym/configs/reasoning_gym.yaml"
TWO = [WORKPLACE, OTHER]
EXAMPLES = [{"fromGym": {"types": ["example"]}}]
LISTED = "workplace_assistant_simple_agent.responses_api_agents.simple_agent.datasets"
ROW = {"responses_create_params": {"input": "2 + 2 ="}}


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(sources=tmp_path / "sources", data=tmp_path / "data")


def problems(run: RunConfig, folders: Folders) -> list[str]:
    return [f"{finding.where}: {finding.message}" for finding in preflight.check(run, folders).findings]


def without_data(run: RunConfig) -> RunConfig:
    spec = run.spec.model_dump(by_alias=True, mode="json")
    del spec["data"]
    return run.model_copy(update={"spec": type(run.spec).model_validate(spec)})


def agents_of(index: DataIndex) -> list[tuple[str | None, int, int]]:
    return [(file.default_agent, file.rows, file.weight) for file in index.train]


def test_each_listed_file_goes_to_the_agent_that_lists_it(make_run: MakeRun, folders: Folders) -> None:
    verdict = preflight.check(make_run(EXAMPLES, TWO), folders)
    assert verdict.findings == []
    assert agents_of(verdict.data) == [
        ("example_single_tool_call_simple_agent", 5, 1),
        ("workplace_assistant_simple_agent", 5, 1),
    ]


def test_agents_narrow_the_choice(make_run: MakeRun, folders: Folders) -> None:
    choice = [{"fromGym": {"types": ["example"], "agents": ["example_single_tool_call_simple_agent"]}, "weight": 3}]
    assert agents_of(preflight.check(make_run(choice, TWO), folders).data) == [
        ("example_single_tool_call_simple_agent", 5, 3)
    ]


def test_data_left_out_is_what_the_config_lists_for_training(
    make_run: MakeRun, folders: Folders, tmp_path: Path
) -> None:
    file = tmp_path / "resources_servers/workplace_assistant/data/train.jsonl"  # as added to an image
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(ROW) + "\n")
    verdict = preflight.check(without_data(make_run([], [WORKPLACE])), folders)
    assert verdict.findings == []
    assert agents_of(verdict.data) == [("workplace_assistant_simple_agent", 1, 1)]


def test_listed_file_that_the_image_lacks_is_named_with_its_key_and_what_to_do(
    make_run: MakeRun, folders: Folders
) -> None:
    (found,) = problems(without_data(make_run([], [WORKPLACE])), folders)
    assert found.startswith(f"config key {LISTED}[0].jsonl_fpath: the Gym image has no resources_servers/")
    assert "hf://nvidia/Nemotron-RL-agent-workplace_assistant" in found
    assert "spec.data" in found


def test_config_without_a_dataset_of_the_type_says_what_it_lists(make_run: MakeRun, folders: Folders) -> None:
    (found,) = problems(make_run([{"fromGym": {"types": ["benchmark"]}}], [WORKPLACE]), folders)
    assert found.startswith("spec.data.train[0].fromGym: the Gym config lists no datasets of type benchmark")
    assert "example (workplace_assistant_simple_agent)" in found


def test_unknown_agent_is_named_with_the_nearest(make_run: MakeRun, folders: Folders) -> None:
    choice = [{"fromGym": {"types": ["example"], "agents": ["example_single_tool_call_simple"]}}]
    (found,) = problems(make_run(choice, TWO), folders)
    assert found.startswith("spec.data.train[0].fromGym.agents: names no agent of the Gym config")
    assert "example_single_tool_call_simple_agent" in found


def overrides(**dataset: Any) -> dict[str, Any]:
    one = {
        "name": "mine",
        "type": "example",
        "jsonl_fpath": "resources_servers/example_single_tool_call/data/example.jsonl",
        **dataset,
    }
    return {"example_single_tool_call_simple_agent": {"responses_api_agents": {"simple_agent": {"datasets": [one]}}}}


def test_repeats_count_as_weight(make_run: MakeRun, folders: Folders) -> None:
    run = make_run([{**EXAMPLES[0], "weight": 2}], [OTHER], overrides=overrides(num_repeats=4))
    assert agents_of(preflight.check(run, folders).data) == [("example_single_tool_call_simple_agent", 5, 8)]


def test_listed_path_may_not_leave_the_image_s_folders(make_run: MakeRun, folders: Folders) -> None:
    run = make_run(EXAMPLES, [OTHER], overrides=overrides(jsonl_fpath="/etc/hostname"))
    assert "leads out of" in problems(run, folders)[0]


def test_file_that_one_agent_lists_needs_no_agent(make_run: MakeRun, folders: Folders) -> None:
    train = [{"source": "gym://resources_servers/example_single_tool_call/data/example.jsonl"}]
    assert (
        agents_of(preflight.check(make_run(train, TWO), folders).data)[0][0] == "example_single_tool_call_simple_agent"
    )


def test_trainer_s_data_container_reads_the_list_from_the_resolved_config(
    make_run: MakeRun, folders: Folders, tmp_path: Path
) -> None:
    run = make_run(EXAMPLES, TWO)
    verdict = preflight.check(run, folders)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(verdict.config))
    names = [server.name for server in verdict.servers if server.kind == "agent"]
    (tmp_path / "run.json").write_text(
        run.model_copy(update={"agents": {name: f"http://{name}:8000" for name in names}}).model_dump_json(
            by_alias=True
        )
    )
    assert data.main(tmp_path / "run.json", folders, config) == 0
    index = DataIndex.model_validate_json((folders.data / "index.json").read_text())
    assert agents_of(index) == agents_of(verdict.data)


def test_validation_is_what_the_config_lists_for_it_and_needs_no_weight(
    make_run: MakeRun, folders: Folders, tmp_path: Path
) -> None:
    run = make_run([{"reasoningGym": {"task": "chain_sum", "size": 3}}], [WORKPLACE, REASONING])
    spec = run.spec.model_dump(by_alias=True, mode="json", exclude_none=True)
    spec["data"]["validation"] = [{"fromGym": {"types": ["example"]}}]
    run = run.model_copy(update={"spec": type(run.spec).model_validate(spec)})
    verdict = preflight.check(run, folders)
    assert verdict.findings == []
    (file,) = [one for one in verdict.data.validation if one.default_agent == "workplace_assistant_simple_agent"]
    assert file.rows == 5
    # The trainer's data container makes the same of it, from the resolved config.
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(verdict.config))
    run = run.model_copy(update={"agents": {server.name: "http://x" for server in verdict.servers}})
    assert data.prepare(run, folders, config).items == []
    index = DataIndex.model_validate_json((folders.data / "index.json").read_bytes())
    assert [one.rows for one in index.validation] == [one.rows for one in verdict.data.validation]
