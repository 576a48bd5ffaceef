"""The gym container of the preflight pod, and the trainer's data container."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import PREFLIGHT_MARK, DataIndex, GymPreflight, RunConfig
from gymtrain_gym import data, preflight
from gymtrain_gym.config import resolve
from gymtrain_gym.datasets.preparation import Folders
from tests.support.specs import of_a_later_release

pytestmark = pytest.mark.gym

type MakeRun = Callable[..., RunConfig]

WORKPLACE = "resources_servers/workplace_assistant/configs/workplace_assistant.yaml"
REASONING_GYM = "resources_servers/reasoning_gym/configs/reasoning_gym.yaml"
ROW = {"responses_create_params": {"input": "2 + 2 ="}}
EXAMPLE = "resources_servers/workplace_assistant/data/example.jsonl"


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(sources=tmp_path / "sources", data=tmp_path / "data")


def put(folders: Folders, number: int | str, name: str, *rows: Any) -> None:
    file = folders.sources / str(number) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))


def problems(run: RunConfig, folders: Folders) -> list[str]:
    return [f"{finding.where}: {finding.message}" for finding in preflight.check(run, folders).findings]


def test_good_run_passes(make_run: MakeRun, folders: Folders) -> None:
    verdict = preflight.check(make_run(), folders)
    assert verdict.findings == []
    assert [server.name for server in verdict.servers] == [
        "reasoning_gym",
        "reasoning_gym_simple_agent",
        "policy_model",
    ]
    assert verdict.data.train[0].rows == 10
    assert verdict.data.train[0].default_agent == "reasoning_gym_simple_agent"


def test_large_generated_set_is_only_sampled(make_run: MakeRun, folders: Folders) -> None:
    run = make_run([{"reasoningGym": {"task": "chain_sum", "size": 5_000_000}}])
    assert preflight.check(run, folders).data.train[0].rows == 5_000_000


def test_verdict_is_one_line_after_the_mark(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    file.write_text(make_run().model_dump_json(by_alias=True))
    assert preflight.main(file) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(PREFLIGHT_MARK)]
    assert GymPreflight.model_validate_json(lines[0].removeprefix(PREFLIGHT_MARK)).findings == []
    assert len(lines) == 1


def test_unexpected_exception_becomes_a_finding(
    make_run: MakeRun, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("library surprise")

    monkeypatch.setattr(resolve, "resolve", fail)
    assert problems(make_run(), folders) == ["spec.gym: preflight stopped at RuntimeError: library surprise"]


def test_row_problems_name_file_and_line(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "rows.jsonl", ROW, "{broken", {**ROW, "agent_ref": {"name": "nobody"}})
    found = problems(make_run([{"source": "pvc://claim/rows.jsonl"}]), folders)
    assert [line.split(": ")[0] for line in found] == ["pvc://claim/rows.jsonl:2", "pvc://claim/rows.jsonl:3"]


IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "data:x", "detail": "auto"}]}
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False}


def test_a_row_with_an_image_is_named_with_file_and_line(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "rows.jsonl", ROW, {"responses_create_params": {"input": [IMAGE]}})
    (found,) = problems(make_run([{"source": "pvc://claim/rows.jsonl"}]), folders)
    assert found.startswith("pvc://claim/rows.jsonl:2: responses_create_params.input has a part of type input_image")


def warnings(run: RunConfig, folders: Folders, *arguments: str, **config: Any) -> list[str]:
    """What preflight warns of, where vLLM is started with these arguments."""
    spec = json.loads(run.spec.model_dump_json(by_alias=True))
    spec["inference"]["args"] = list(arguments)
    spec["trainer"]["config"] = config
    verdict = preflight.check(run.model_copy(update={"spec": GymTrainingRunSpec.model_validate(spec)}), folders)
    assert verdict.findings == []
    return [f"{warning.where}: {warning.message}" for warning in verdict.warnings]


def test_tools_without_a_tool_parser_are_a_warning_that_names_the_first_row(
    make_run: MakeRun, folders: Folders
) -> None:
    put(folders, 0, "rows.jsonl", ROW, {"responses_create_params": {"input": "x", "tools": [TOOL]}})
    run = make_run([{"source": "pvc://claim/rows.jsonl"}])
    (warning,) = warnings(run, folders)
    assert warning.startswith("pvc://claim/rows.jsonl:2: 1 rows have tools, and vLLM answers none of them")
    assert "--tool-call-parser" in warning
    assert warnings(run, folders, "--enable-auto-tool-choice", "--tool-call-parser=hermes") == []


def test_a_prompt_that_can_not_fit_is_a_warning_that_names_its_row(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "rows.jsonl", ROW, {"responses_create_params": {"input": "word " * 1200}}, ROW)
    run = make_run([{"source": "pvc://claim/rows.jsonl"}])
    (warning,) = warnings(run, folders, "--max-model-len=1024", max_completion_length=64)
    assert warning.startswith("pvc://claim/rows.jsonl:2: has a prompt of 6000 characters, 1000 tokens or more")
    assert warnings(run, folders, "--max-model-len=2048", max_completion_length=64) == []
    assert warnings(run, folders) == []


def test_many_row_problems_are_counted(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "rows.jsonl", *["{broken"] * 50)
    found = problems(make_run([{"source": "pvc://claim/rows.jsonl"}]), folders)
    assert len(found) == 21
    assert found[-1] == "pvc://claim/rows.jsonl: 30 more of 50 rows can't be used"


def test_missing_file_in_a_volume_names_the_nearest(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "sets/train.jsonl", ROW)
    found = problems(make_run([{"source": "pvc://claim/sets/trian.jsonl"}]), folders)
    assert found == [
        "spec.data.train[0].source: pvc://claim/sets/trian.jsonl: the volume has no 'sets/trian.jsonl': "
        "the nearest is 'sets/train.jsonl'"
    ]


def test_missing_key_of_a_configmap_names_the_nearest(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "train.jsonl", ROW)
    found = problems(make_run([{"source": "configmap://rows/train.json"}]), folders)
    assert found[0].endswith("the ConfigMap has no 'train.json': the nearest is 'train.jsonl'")


def test_path_can_not_leave_its_volume(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "rows.jsonl", ROW)
    put(folders, 1, "rows.jsonl", ROW)
    found = problems(make_run([{"source": "pvc://claim/../1/rows.jsonl"}]), folders)
    assert found[0].endswith("leads out of the volume")


def test_folder_instead_of_a_file_is_named(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "sets/train.jsonl", ROW)
    found = problems(make_run([{"source": "pvc://claim/sets"}]), folders)
    assert found[0].endswith("is a folder: name one file, there is train.jsonl")


def test_missing_file_of_the_image_names_the_nearest(make_run: MakeRun, folders: Folders) -> None:
    found = problems(make_run([{"source": f"gym://{EXAMPLE[:-1]}"}], [WORKPLACE]), folders)
    assert found[0].endswith(f"the nearest is '{EXAMPLE}'")


def test_empty_dataset_is_refused(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "rows.jsonl")
    assert problems(make_run([{"source": "pvc://claim/rows.jsonl"}]), folders) == [
        "spec.data.train[0].source: pvc://claim/rows.jsonl: has no rows"
    ]


def test_unknown_agent_of_a_dataset_is_said_once(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "rows.jsonl", ROW, ROW)
    found = problems(make_run([{"source": "pvc://claim/rows.jsonl", "agent": "reasoning_agent"}]), folders)
    assert found == [
        "spec.data.train[0].agent: names no agent of the Gym config, 'reasoning_agent': "
        "the nearest is 'reasoning_gym_simple_agent'"
    ]


def test_rows_need_an_agent_where_there_are_several(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "rows.jsonl", ROW)
    found = problems(make_run([{"source": "pvc://claim/rows.jsonl"}], [REASONING_GYM, WORKPLACE]), folders)
    assert found[0].startswith("pvc://claim/rows.jsonl:1: names no agent")


def test_generated_rows_find_the_agent_that_can_score_them(make_run: MakeRun, folders: Folders) -> None:
    verdict = preflight.check(make_run(config_paths=[REASONING_GYM, WORKPLACE]), folders)
    assert verdict.data.train[0].agents == {"reasoning_gym_simple_agent": 10}


def test_generated_rows_need_a_reasoning_gym_server(make_run: MakeRun, folders: Folders) -> None:
    found = problems(make_run(config_paths=[WORKPLACE]), folders)
    assert found[0].startswith("spec.data.train[0].reasoningGym: no agent of the Gym config is in front of")


def test_unknown_task_is_found(make_run: MakeRun, folders: Folders) -> None:
    found = problems(make_run([{"reasoningGym": {"task": "chain_sums", "size": 5}}]), folders)
    assert found == [
        "spec.data.train[0].reasoningGym: reasoning_gym has no task 'chain_sums': the nearest is 'chain_sum'"
    ]


def test_problems_of_config_and_data_are_told_together(make_run: MakeRun, folders: Folders) -> None:
    run = make_run([{"reasoningGym": {"task": "chain_sums", "size": 5}}], servers={"nobody": {}})
    assert [line.split(":")[0] for line in problems(run, folders)] == [
        "spec.gym.servers.nobody",
        "spec.data.train[0].reasoningGym",
    ]


def read_rows(folders: Folders) -> list[list[dict[str, Any]]]:
    """All rows, read as the trainer reads them."""
    index = DataIndex.model_validate_json((folders.data / "index.json").read_bytes())
    result = []
    for file in index.train:
        content, raw = Path(file.file).read_bytes(), Path(file.offsets_file).read_bytes()
        offsets = struct.unpack(f"<{file.rows + 1}Q", raw)
        result.append([json.loads(content[a:b]) for a, b in pairwise(offsets)])
    return result


def test_data_container_makes_every_kind_of_dataset(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "rows.jsonl", ROW, {**ROW, "n": 1})
    put(folders, 1, "key", {**ROW, "n": 2})
    agent = {"agent": "workplace_assistant_simple_agent"}
    train = [
        {"source": "pvc://claim/rows.jsonl", "weight": 3, **agent},
        {"source": "configmap://name/key", **agent},
        {"source": f"gym://{EXAMPLE}", **agent},
        {"reasoningGym": {"task": "chain_sum", "size": 200}},
    ]
    assert data.prepare(make_run(train, [REASONING_GYM, WORKPLACE]), folders).items == []
    assert [len(rows) for rows in read_rows(folders)] == [2, 1, 5, 200]


def test_data_container_reads_a_run_json_of_a_later_release(
    make_run: MakeRun, folders: Folders, tmp_path: Path
) -> None:
    """The operator was upgraded, this attempt's Job was not, and its pod is made again."""
    document = json.loads(make_run().model_dump_json(by_alias=True, exclude_defaults=True))
    (tmp_path / "run.json").write_text(json.dumps(of_a_later_release(document)))
    assert data.main(tmp_path / "run.json", folders) == 0
    assert [len(rows) for rows in read_rows(folders)] == [10]


def test_volume_is_indexed_in_place_and_the_rest_is_copied(make_run: MakeRun, folders: Folders) -> None:
    put(folders, 0, "rows.jsonl", ROW)
    put(folders, 1, "key", ROW)
    data.prepare(make_run([{"source": "pvc://claim/rows.jsonl"}, {"source": "configmap://name/key"}]), folders)
    index = DataIndex.model_validate_json((folders.data / "index.json").read_bytes())
    assert [file.file for file in index.train] == [
        str(folders.sources / "0" / "rows.jsonl"),
        str(folders.data / "train-1.jsonl"),
    ]


def with_validation(run: RunConfig, *validation: dict[str, Any]) -> RunConfig:
    data = {"train": [{"reasoningGym": {"task": "chain_sum", "size": 3}}], "validation": list(validation)}
    spec = run.spec.model_dump(by_alias=True, exclude_none=True) | {"data": data}
    return RunConfig.model_validate(run.model_dump() | {"spec": spec})


def test_validation_data_is_indexed_beside_the_training_data(make_run: MakeRun, folders: Folders) -> None:
    put(folders, "validation-0", "held-out.jsonl", ROW, ROW)
    made = {"reasoningGym": {"task": "chain_sum", "size": 4, "seed": 7}}
    run = with_validation(make_run(), {"source": "pvc://claim/held-out.jsonl"}, made)
    data.prepare(run, folders)
    index = DataIndex.model_validate_json((folders.data / "index.json").read_bytes())
    assert [(Path(file.file).name, file.rows) for file in index.train] == [("train-0.jsonl", 3)]
    assert [(Path(file.file).name, file.rows) for file in index.validation] == [
        ("held-out.jsonl", 2),
        ("validation-1.jsonl", 4),
    ]
    assert {file.default_agent for file in index.validation} == {"reasoning_gym_simple_agent"}


@pytest.mark.parametrize(("seed", "shared"), [(0, 3), (2, 1), (3, 0)])
def test_generated_rows_that_are_trained_on_too_are_a_warning(
    make_run: MakeRun, folders: Folders, seed: int, shared: int
) -> None:
    made = {"reasoningGym": {"task": "chain_sum", "size": 3, "seed": seed}}
    verdict = preflight.check(with_validation(make_run(), made), folders)
    assert verdict.findings == []
    if not shared:
        assert verdict.warnings == []
        return
    (warning,) = verdict.warnings
    assert warning.where == "spec.data.validation[0].reasoningGym.seed"
    assert warning.message.startswith(f"{shared} of 3 rows are rows of train[0], too")
    assert warning.message.endswith("choose 3 or more")


def test_other_settings_of_a_task_share_no_rows(make_run: MakeRun, folders: Folders) -> None:
    made = {"reasoningGym": {"task": "chain_sum", "size": 3, "config": {"min_terms": 3}}}
    assert preflight.check(with_validation(make_run(), made), folders).warnings == []


def test_reasoning_gym_makes_a_row_of_the_sum_of_seed_and_position() -> None:
    from gymtrain_api.spec import ReasoningGymTask
    from gymtrain_gym.datasets import generated

    one, two = (list(generated.rows(ReasoningGymTask(task="chain_sum", size=4, seed=seed))) for seed in (1, 2))
    assert [json.loads(row)["question"] for row in one[1:]] == [json.loads(row)["question"] for row in two[:-1]]


def test_bad_validation_rows_are_named(make_run: MakeRun, folders: Folders) -> None:
    put(folders, "validation-0", "held-out.jsonl", ROW, "{")
    found = problems(with_validation(make_run(), {"source": "pvc://claim/held-out.jsonl", "agent": "nobody"}), folders)
    assert any(one.startswith("spec.data.validation[0].agent: names no agent") for one in found)
    assert any(one.startswith("pvc://claim/held-out.jsonl:2: invalid JSON") for one in found)


def test_data_is_the_same_in_every_attempt(make_run: MakeRun, folders: Folders, tmp_path: Path) -> None:
    again = Folders(sources=folders.sources, data=tmp_path / "again")
    for place in (folders, again):
        data.prepare(make_run([{"reasoningGym": {"task": "chain_sum", "size": 100, "seed": 9}}]), place)
    assert read_rows(folders) == read_rows(again)


def test_agents_of_the_run_spare_the_gym_config(
    make_run: MakeRun, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "resolve", lambda *args: pytest.fail("resolved again"))
    run = make_run().model_copy(update={"agents": {"reasoning_gym_simple_agent": "http://agent:8000"}})
    assert data.prepare(run, folders).items == []


def test_unusable_data_ends_the_container_with_a_message(
    make_run: MakeRun, folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    file.write_text(make_run([{"source": "pvc://claim/none.jsonl"}]).model_dump_json(by_alias=True))
    assert data.main(file, folders) == 78
    assert "gymtrain: spec.data.train[0].source: pvc://claim/none.jsonl: the volume is not" in capsys.readouterr().err
    assert not (folders.data / "index.json").exists()


def test_data_container_starts_without_nemo_gym() -> None:
    code = "import sys; import gymtrain_gym.data; sys.exit('nemo_gym' in sys.modules)"
    path = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env={**os.environ, "PYTHONPATH": path})
