"""Where a run begins when its folder, or another run's, holds checkpoints already."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.conditions import Reason
from gymtrain_trainer.checkpoints.begin import prepare_folder, starting_place
from gymtrain_trainer.checkpoints.evaluated import check_evaluated_models
from gymtrain_trainer.checkpoints.folder import WorkerState, checkpoint_folder, write_state
from gymtrain_trainer.checkpoints.resume import check_resume, start_of
from gymtrain_trainer.checkpoints.saving import data_of
from gymtrain_trainer.context import Context, read_context
from gymtrain_trainer.errors import ResumeError
from gymtrain_trainer.framework import TrainingSettings, load_framework
from gymtrain_trainer.progress import ProgressBoard
from tests.unit.trainer.test_trainer_entry import context
from tests.unit.trainer.trainer_data import question, write_dataset, write_index

EARLIER = "the-uid-of-an-earlier-run"


def save(folder: Path, *steps: int, uid: str = EARLIER, data: str = "", kind: str = "", **files: Any) -> None:
    """Whole checkpoints, with further JSON files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in steps:
        checkpoint = checkpoint_folder(folder, step)
        checkpoint.mkdir(parents=True)
        for name, content in files.items():
            (checkpoint / f"{name}.json").write_text(json.dumps(content))
        write_state(checkpoint, WorkerState(step=step, position=step * 4, attempt=1, uid=uid, data=data, kind=kind))
    if not (folder / ".gymtrain-run").exists():
        (folder / ".gymtrain-run").write_text(uid)


def keep_best(folder: Path, step: int) -> None:
    """The checkpoint of a step is the best so far."""
    shutil.copytree(checkpoint_folder(folder, step), folder / "best")


def made(tmp_path: Path, resume_from: str | None = None, **parts: Any) -> Context:
    """A run named math, with a claim of the user's."""
    parts = {"trainer": {"checkpoint": {"claimName": "ck"}}, "resumeFrom": resume_from} | parts
    return context(tmp_path, **parts)


def settings_of(found: Context, steps: int | None = None) -> TrainingSettings:
    return dataclasses.replace(load_framework().settings(found.run.spec, None), max_steps=steps)


def begin(found: Context, steps: int | None = None) -> tuple[str, int, ProgressBoard]:
    """The checkpoint's path below the test's folder, the place in the data, and what was told."""
    board = ProgressBoard()
    start = start_of(found, settings_of(found, steps))
    prepare_folder(found, board)
    position = starting_place(found, board, start, settings_of(found).seed).first_open
    root = found.paths.checkpoints.parent
    return (str(start.checkpoint.folder.relative_to(root)) if start.checkpoint else "", position, board)


def contents(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))


def test_what_an_earlier_run_left_is_set_aside_with_a_word(tmp_path: Path) -> None:
    found = made(tmp_path)
    save(found.run_folder, 100, 120)
    (found.run_folder / "model").mkdir()
    (found.run_folder / "rewards.csv").touch()
    where, position, board = begin(found)
    assert (where, position) == ("", 0)
    (notice,) = board.snapshot().notices
    assert notice.reason == Reason.CHECKPOINTS_SET_ASIDE
    assert "held checkpoint-100, checkpoint-120, model of an earlier run" in notice.message
    assert "PersistentVolumeClaim ck" in notice.message
    assert "spec.resumeFrom: math/previous-1" in notice.message
    assert contents(found.run_folder) == ["previous-1"]
    assert begin(found)[2].snapshot().notices == [], "a later attempt moves nothing"


def test_an_earlier_run_that_left_no_checkpoint_is_no_news(tmp_path: Path) -> None:
    found = made(tmp_path)
    save(found.run_folder)
    (found.run_folder / "rewards.csv").touch()
    assert begin(found)[2].snapshot().notices == []


def test_a_folder_whose_earlier_set_asides_were_deleted_in_part_is_set_aside_too(tmp_path: Path) -> None:
    found = made(tmp_path)
    save(found.run_folder, 100)
    (found.run_folder / "previous-2").mkdir()
    begin(found)
    assert contents(found.run_folder) == ["previous-2", "previous-3"]


def test_with_its_own_name_a_run_goes_on_in_its_own_folder(tmp_path: Path) -> None:
    found = made(tmp_path, "math")
    save(found.run_folder, 100, 120)
    where, _, board = begin(found)
    assert where == "checkpoints/checkpoint-120"
    assert contents(found.run_folder) == ["checkpoint-100", "checkpoint-120"]
    assert [notice.reason for notice in board.snapshot().notices] == [Reason.RESUMED_FROM_CHECKPOINT]
    # An attempt that ended before a checkpoint of its own begins there again; later ones at their own.
    assert begin(found)[0] == "checkpoints/checkpoint-120"
    save(found.run_folder, 130, uid=found.owner)
    assert begin(found)[0] == "checkpoints/checkpoint-130"


def test_going_on_from_an_earlier_step_of_its_own_sets_the_later_ones_aside(tmp_path: Path) -> None:
    """Left there, TRL would count them among the newest that it keeps, and delete those of this run."""
    found = made(tmp_path, "math/checkpoint-100")
    save(found.run_folder, 80, 100, 120, 140)
    where, _, board = begin(found)
    assert where == "checkpoints/checkpoint-100"
    assert contents(found.run_folder) == ["checkpoint-100", "checkpoint-80", "previous-1"]
    assert "checkpoint-120, checkpoint-140" in board.snapshot().notices[0].message
    assert begin(found)[0] == "checkpoints/checkpoint-100"


def test_going_on_from_its_own_best_sets_later_checkpoints_aside(tmp_path: Path) -> None:
    found = made(tmp_path, "math/best")
    save(found.run_folder, 80, 100, 120)
    keep_best(found.run_folder, 100)
    shutil.rmtree(checkpoint_folder(found.run_folder, 100))  # save_total_limit has removed it
    assert begin(found)[0] == "checkpoints/best"
    assert contents(found.run_folder) == ["best", "checkpoint-80", "previous-1"]
    save(found.run_folder, 110, uid=found.owner)
    assert begin(found)[0] == "checkpoints/checkpoint-110"


def test_what_was_set_aside_can_be_gone_on_from(tmp_path: Path) -> None:
    found = made(tmp_path, "math/previous-1")
    save(found.run_folder / "previous-1", 100)
    save(found.run_folder, 20)
    assert begin(found)[0] == "checkpoints/previous-1/checkpoint-100"
    assert contents(found.run_folder) == ["previous-1", "previous-2"]
    assert begin(found)[0] == "checkpoints/previous-1/checkpoint-100"


@pytest.mark.parametrize(
    ("resume_from", "checkpoint"),
    [
        ("workplace", "checkpoint-120"),
        ("workplace/checkpoint-100", "checkpoint-100"),
        ("workplace/best", "best"),
        ("workplace/previous-1/best", "previous-1/best"),
    ],
)
def test_another_runs_folder_is_read_and_left_as_it_is(tmp_path: Path, resume_from: str, checkpoint: str) -> None:
    found = made(tmp_path, resume_from)
    other = found.paths.resume / "workplace"
    save(other, 100, 120)
    keep_best(other, 100)
    save(other / "previous-1", 40)
    keep_best(other / "previous-1", 40)
    checkpoint_folder(other, 140).mkdir()
    before = contents(other)
    assert begin(found)[0] == f"resume/workplace/{checkpoint}"
    assert contents(other) == before
    save(found.run_folder, 130, uid=found.owner)
    assert begin(found)[0] == "checkpoints/checkpoint-130"


def test_the_place_in_the_data_goes_on_where_the_data_is_the_same(tmp_path: Path) -> None:
    found = made(tmp_path, "math")
    write_index(tmp_path / "data", write_dataset(tmp_path / "data", [question(number) for number in range(9)]))
    save(found.run_folder, 10, data=data_of(found, settings_of(found).seed))
    _, position, board = begin(found)
    assert position == 40
    assert "in the data at position 40" in board.snapshot().notices[0].message


@pytest.mark.parametrize("data", ["", "of-other-data"])
def test_other_data_is_drawn_from_its_start_and_that_is_said(tmp_path: Path, data: str) -> None:
    found = made(tmp_path, "math")
    save(found.run_folder, 10, data=data)
    _, position, board = begin(found)
    assert position == 0
    assert "the data differs from the earlier run's and is drawn from its start" in board.snapshot().notices[0].message


def test_a_run_restored_from_a_backup_goes_on_with_its_checkpoints_and_place(tmp_path: Path) -> None:
    found = made(tmp_path)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"uid": "new", "lineage": EARLIER}))
    restored = read_context({"GYMTRAIN_RUN_CONFIG": str(path), "GYMTRAIN_ROOT": str(tmp_path)})
    save(found.run_folder, 100)
    where, position, board = begin(restored)
    assert (where, position) == ("checkpoints/checkpoint-100", 400)
    assert board.snapshot().notices == []


FIELD = "spec.evaluation.withoutTraining.checkpointsOf"
CONFIG = {"model_type": "qwen3", "hidden_size": 64}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("workplace/checkpoint-7", {}, "there are workplace/checkpoint-100, workplace/previous-1/checkpoint-40"),
    (
        "workplace/best",
        {},
        "no whole best in folder workplace of PersistentVolumeClaim ck; there are workplace/checkpoint",
    ),
    ("workplace/previous-3", {}, "there are workplace/checkpoint-100, workplace/previous-1/checkpoint-40"),
    ("elsewhere", {}, "there are workplace/checkpoint-100, workplace/previous-1/checkpoint-40"),
    ("workplace/checkpoint-90", {}, "no whole checkpoint-90 in folder workplace of PersistentVolumeClaim ck"),
    ("workplace", {"steps": 100}, "checkpoint-100 is at step 100, and the run ends at step 100: raise spec.trainer"),
    ("workplace", {"lora": {"r": 8}}, "checkpoint-100 holds all weights, and the run trains an adapter"),
    ("workplace/previous-1", {}, "checkpoint-40 holds an adapter, and the run trains all weights"),
    ("workplace", {"hidden_size": 128}, "of another model than spec.model: hidden_size 64 (spec.model: 128)"),
]


@pytest.mark.parametrize(("resume_from", "more", "words"), REFUSED)
@pytest.mark.parametrize("where", ["preflight", "trainer"])
def test_what_a_run_can_not_go_on_from_is_refused_with_what_is_there(
    tmp_path: Path, resume_from: str, more: dict[str, Any], words: str, where: str
) -> None:
    lora = {"model": {"source": "hf://a/b", "lora": more["lora"]}} if "lora" in more else {}
    found = made(tmp_path, resume_from, **lora)
    other = found.paths.resume / "workplace"
    save(other, 100, config=CONFIG)
    checkpoint_folder(other, 90).mkdir()
    save(other / "previous-1", 40, adapter_config={})
    found.paths.model.mkdir(exist_ok=True)
    (found.paths.model / "config.json").write_text(json.dumps(CONFIG | {k: v for k, v in more.items() if k in CONFIG}))
    steps = more.get("steps", 500)
    if where == "preflight":
        (finding,) = check_resume(found.run, found.paths.resume, found.paths.model, settings_of(found, steps))
        assert finding.where == "spec.resumeFrom"
        assert words in finding.message
    else:
        save(found.run_folder, 3)
        with pytest.raises(ResumeError, match=r"spec\.resumeFrom: ") as error:
            begin(found, steps)
        assert words in str(error.value)
        assert contents(found.run_folder) == ["checkpoint-3"], "nothing is moved for a run that can't begin"


EVALUATED: list[tuple[str, str]] = [
    ("workplace", ""),
    ("workplace/checkpoint-7", "no whole checkpoint-7 in folder workplace of PersistentVolumeClaim ck; there are work"),
    ("workplace/previous-1", "checkpoint-40 is of another model than spec.model: hidden_size 128 (spec.model: 64)"),
    ("math", "is the name of this run"),
]


@pytest.mark.parametrize(("checkpoints_of", "words"), EVALUATED)
def test_preflight_looks_for_the_checkpoints_that_are_evaluated(
    tmp_path: Path, checkpoints_of: str, words: str
) -> None:
    evaluation = {"withoutTraining": {"checkpointsOf": checkpoints_of}}
    found = made(tmp_path, evaluation=evaluation, data={"validation": [{"source": "gym://x.jsonl"}]})
    other = found.paths.resume / "workplace"
    save(other, 100, config=CONFIG)
    save(other / "previous-1", 40, config=CONFIG | {"hidden_size": 128})
    found.paths.model.mkdir(exist_ok=True)
    (found.paths.model / "config.json").write_text(json.dumps(CONFIG))
    findings = check_evaluated_models(found.run, found.paths.resume, found.paths.model)
    assert [finding.where for finding in findings] == [FIELD] * bool(words)
    assert all(words in finding.message for finding in findings)


def test_preflight_has_nothing_against_a_checkpoint_that_fits(tmp_path: Path) -> None:
    found = made(tmp_path, "workplace")
    save(found.paths.resume / "workplace", 100, config=CONFIG)
    assert check_resume(found.run, found.paths.resume, found.paths.model, settings_of(found)) == []
    without = made(tmp_path)
    assert check_resume(without.run, without.paths.resume, without.paths.model, settings_of(without)) == []


@pytest.mark.parametrize(
    ("written", "config", "refused"),
    [
        ("without trainer.config.fsdp", {"fsdp": True}, True),
        ("with trainer.config.fsdp and state_dict_type: FULL_STATE_DICT", {"fsdp": True}, True),
        ("with trainer.config.fsdp and state_dict_type: SHARDED_STATE_DICT", {"fsdp": True}, False),
        ("with trainer.config.fsdp and state_dict_type: SHARDED_STATE_DICT", {}, True),
        ("without trainer.config.fsdp", {}, False),
        ("", {"fsdp": True}, False),  # an earlier release didn't say
    ],
)
def test_a_checkpoint_of_another_kind_is_refused(
    tmp_path: Path, written: str, config: dict[str, Any], refused: bool
) -> None:
    found = made(tmp_path, "workplace", trainer={"checkpoint": {"claimName": "ck"}, "nodes": 2, "config": config})
    save(found.paths.resume / "workplace", 100, kind=written)
    findings = check_resume(found.run, found.paths.resume, found.paths.model, settings_of(found))
    assert [written in finding.message and "this run reads" in finding.message for finding in findings] == (
        [True] if refused else []
    )


def test_preflight_of_a_restored_run_that_has_gone_on_asks_no_more_for_where_it_began(tmp_path: Path) -> None:
    found = made(tmp_path, "math/checkpoint-100")  # TRL has deleted it since, as it keeps the newest
    restored = found.run.model_copy(update={"lineage": EARLIER})
    save(found.paths.resume / "math", 300)
    assert check_resume(restored, found.paths.resume, found.paths.model, settings_of(found, 300)) == []
    assert check_resume(found.run, found.paths.resume, found.paths.model, settings_of(found, 300)) != []


def _digest(folder: Path, rows: range = range(9), weight: int = 1, **config: Any) -> str:
    folder.mkdir()
    found = made(folder, trainer={"checkpoint": {"claimName": "ck"}, "config": config})
    write_index(folder / "data", write_dataset(folder / "data", [question(number) for number in rows], weight=weight))
    return data_of(found, settings_of(found).seed)


def test_the_digest_of_the_data_is_that_of_its_rows_weights_and_seed(tmp_path: Path) -> None:
    same = _digest(tmp_path / "a")
    assert same != ""
    assert _digest(tmp_path / "b", seed=42) == same
    others = {
        _digest(tmp_path / "more", range(10)),
        _digest(tmp_path / "longer", range(5, 14)),
        _digest(tmp_path / "weight", weight=2),
        _digest(tmp_path / "seed", seed=7),
    }
    assert len(others | {same}) == 5
