"""The recorder of steps: what a row says, which samples are written, and what a slow or full volume costs."""

import errno
import importlib.util
import json
import math
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.spec import Records
from gymtrain_trainer.framework import SampleGroup, TrainedSample, TrainingSample
from gymtrain_trainer.monitoring import recorder as recorder_module
from gymtrain_trainer.monitoring.metrics import registry
from gymtrain_trainer.monitoring.record import RewardsFile, StepRecord
from gymtrain_trainer.monitoring.recorder import RECORDED_STEPS, Recorder
from gymtrain_trainer.monitoring.sample_rows import COLUMNS, StepSamples
from gymtrain_trainer.monitoring.step_files import StepFiles
from gymtrain_trainer.monitoring.step_tables import write_jsonl, write_parquet
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.buffer import UsedGroup

PAGE = (Path(__file__).parents[3] / "docs" / "records.md").read_text()

needs_pyarrow = [
    pytest.mark.torch,  # as all of the trainer's own libraries
    pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow (uv run --extra trainer)"),
]


def sample(group: int = 7, rollout: int = 0, **fields: Any) -> TrainingSample:
    usual: dict[str, Any] = {
        "token_ids": array("q", [5, 6, 70_000]),
        "mask": array("b", [0, 1, 1]),
        "log_probs": array("f", [0.0, -0.5, -0.25]),
        "versions": (3,),
        "reward": 1.0,
    }
    return TrainingSample(group_id=group, rollout=rollout, agent="adder", **usual | fields)


def used(group: int = 7, *samples: TrainingSample, version: int = 4) -> UsedGroup:
    samples = samples or (sample(group), sample(group, 1, reward=0.0))
    rewards = {one.rollout: one.reward for one in samples}
    return UsedGroup(SampleGroup(group, "adder", tuple(rewards.values()), samples), version)


def trained(*groups: UsedGroup, ratio: float | None = 1.25) -> list[TrainedSample]:
    return [
        TrainedSample(one.group.id, index, index - 0.5, ratio, (1.5, 0.75) if ratio is not None else ())
        for one in groups
        for index in range(len(one.group.samples))
    ]


def label(version: int) -> str:
    return f"run:2:{version}"


def step_samples(*groups: UsedGroup, step: int = 12, ratio: float | None = 1.25) -> StepSamples:
    return StepSamples(step, groups, trained(*groups, ratio=ratio), {n: label(n) for n in range(9)})


def records(samples: str = "All", format: str = "JSONL", **fields: Any) -> Records:
    return Records.model_validate({"samples": samples, "format": format} | fields)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def board() -> ProgressBoard:
    return ProgressBoard()


@pytest.fixture
def make(tmp_path: Path, board: ProgressBoard) -> Iterator[Callable[..., Recorder]]:
    """A recorder that has begun, of a run's folder."""
    made: list[Recorder] = []

    def begin(settings: Records, step: int = 0) -> Recorder:
        made.append(Recorder(tmp_path, settings, board, label))
        made[-1].begin(step)
        return made[-1]

    yield begin
    for one in made:
        one.end()


def record(step: int) -> StepRecord:
    return StepRecord(step, 0.5, 0.1, 1, 0.0, 3, 1.0, float(step))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it didn't happen"
        time.sleep(0.01)


def outcomes(board: ProgressBoard) -> dict[str, int]:
    return board.tallies(RECORDED_STEPS)


def has_written(board: ProgressBoard, steps: int) -> bool:
    return outcomes(board).get("written") == steps


# --- rows ---


def test_a_sample_that_was_not_measured_has_no_ratios() -> None:
    for row in step_samples(used(), ratio=None).rows():
        assert list(row["ratios"]) == []


def test_a_row_says_what_was_sampled_by_whom_and_what_came_of_it() -> None:
    forked = sample(7, 1, versions=(2, 3), reward=0.0, truncated=True, masked=True, constrained=True)
    _, row = step_samples(used(7, sample(7), forked)).rows()
    tokens = {name: list(row.pop(name)) for name in ("token_ids", "mask", "log_probs", "ratios")}
    assert tokens == {
        "token_ids": [5, 6, 70_000],
        "mask": [0, 1, 1],
        "log_probs": [0.0, -0.5, -0.25],
        "ratios": [0.0, 1.5, 0.75],
    }
    assert row == {
        "step": 12,
        "group": 7,
        "rollout": 1,
        "sample": 1,
        "agent": "adder",
        "reward": 0.0,
        "reward_deviation": 0.5,
        "advantage": 0.5,
        "ratio": 1.25,
        "version": "run:2:4",
        "versions": ["run:2:2", "run:2:3"],
        "staleness": 2,
        "truncated": True,
        "masked": True,
        "constrained": True,
    }


def test_a_sample_that_the_framework_says_nothing_of_has_no_advantage_and_no_ratio() -> None:
    (row, _) = StepSamples(1, [used()], [], {3: "a", 4: "b"}).rows()
    assert (row["advantage"], row["ratio"]) == (None, None)


def test_every_column_is_in_each_row_in_its_order() -> None:
    assert [list(row) for row in step_samples(used()).rows()] == [list(COLUMNS)] * 2


def test_json_lines_hold_the_rows(tmp_path: Path) -> None:
    with (tmp_path / "x.jsonl").open("wb") as file:
        write_jsonl(step_samples(used()), file)
    first, second = rows_of(tmp_path)
    assert list(first) == list(COLUMNS)
    assert (first["token_ids"], first["mask"], first["log_probs"]) == ([5, 6, 70_000], [0, 1, 1], [0.0, -0.5, -0.25])
    assert (first["ratio"], first["truncated"], second["rollout"]) == (1.25, False, 1)


def test_what_json_has_no_number_for_is_null(tmp_path: Path) -> None:
    odd = sample(log_probs=[0.0, -math.inf, -0.5])
    with (tmp_path / "x.jsonl").open("wb") as file:
        write_jsonl(step_samples(used(7, odd), ratio=math.inf), file)
    (row,) = rows_of(tmp_path)
    assert row["ratio"] is None
    assert row["log_probs"] == [0.0, None, -0.5]


@pytest.mark.parametrize("ratio", [pytest.param(1.25, marks=needs_pyarrow), pytest.param(None, marks=needs_pyarrow)])
def test_parquet_and_json_lines_hold_the_same(tmp_path: Path, ratio: float | None) -> None:
    import pyarrow.parquet as pq

    samples = step_samples(used(), used(8, sample(8, token_ids=[1], mask=[1], log_probs=[-2.0])), ratio=ratio)
    with (tmp_path / "x.jsonl").open("wb") as lines, (tmp_path / "x.parquet").open("wb") as table:
        write_jsonl(samples, lines)
        write_parquet(samples, table)
    read = pq.read_table(tmp_path / "x.parquet")
    assert read.to_pylist() == rows_of(tmp_path)
    kinds = {field.name: str(field.type).replace("element: ", "").replace("item: ", "") for field in read.schema}
    assert kinds == COLUMNS


@pytest.mark.parametrize(
    ("format", "place"),
    [pytest.param("Parquet", 0, marks=needs_pyarrow), pytest.param("JSONL", 1, marks=needs_pyarrow)],
)
def test_two_lines_of_the_page_load_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, place: int
) -> None:
    files = StepFiles(tmp_path / "records", records(format=format))
    for step, ratio in ((1, None), (2, 1.25)):  # a column without a value in the first file
        files.write(step_samples(used(), step=step, ratio=ratio))
    (tmp_path / "records" / f".step-00000003.{format.lower()}.new").write_bytes(b"half")
    monkeypatch.chdir(tmp_path)
    lines = PAGE.split("```python\n")[1 + place].split("```")[0]
    assert len([line for line in lines.splitlines() if line]) == 2
    notebook: dict[str, Any] = {}
    exec(lines, notebook)
    samples = notebook["samples"]
    assert list(samples.columns) == list(COLUMNS)
    assert list(samples["step"]) == [1, 1, 2, 2]
    assert samples["ratio"].isna().tolist() == [True, True, False, False]
    assert samples["log_probs"].map(sum).tolist() == [-0.75] * 4


# --- files ---


def test_an_attempt_that_goes_on_removes_what_was_recorded_after_its_step(tmp_path: Path) -> None:
    before = StepFiles(tmp_path / "records", records())
    for step in (1, 2, 10):
        before.write(step_samples(used(), step=step))
    (tmp_path / "records" / ".step-00000003.jsonl.new").touch()
    (tmp_path / "records" / "notes.txt").touch()
    StepFiles(tmp_path / "records", records()).begin(2)
    assert names_of(tmp_path / "records") == ["notes.txt", "step-00000001.jsonl", "step-00000002.jsonl"]


def test_the_oldest_steps_give_way_to_new_ones(tmp_path: Path) -> None:
    unlimited = StepFiles(tmp_path, records())
    for step in (9, 10, 11):
        unlimited.write(step_samples(used(), step=step))
    size = (tmp_path / "step-00000009.jsonl").stat().st_size
    files = StepFiles(tmp_path, records(maxSize=str(3 * size + size // 2)))
    files.begin(11)
    assert [files.write(step_samples(used(), step=step)) for step in (12, 13)] == [1, 1]
    assert names_of(tmp_path) == [f"step-000000{step}.jsonl" for step in (11, 12, 13)]


def test_the_last_step_stays_however_large_it_is(tmp_path: Path) -> None:
    files = StepFiles(tmp_path, records(maxSize="1"))
    assert [files.write(step_samples(used(), step=step)) for step in (1, 2)] == [0, 1]
    assert names_of(tmp_path) == ["step-00000002.jsonl"]


def test_nothing_is_left_of_a_file_that_the_volume_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    files = StepFiles(tmp_path, records())
    with pytest.raises(OSError, match="No space left"):
        files.write(step_samples(used()))
    assert names_of(tmp_path) == []


def test_a_file_appears_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: seen.append(names_of(tmp_path)))
    StepFiles(tmp_path, records()).write(step_samples(used()))
    assert seen == [[".step-00000012.jsonl.new"]]
    assert names_of(tmp_path) == ["step-00000012.jsonl"]


# --- the recorder ---


def test_all_writes_every_group_of_each_step(make: Callable[..., Recorder], tmp_path: Path) -> None:
    recorder = make(records("All"))
    for step in (1, 2):
        groups = [used(number, version=step) for number in (10 * step, 10 * step + 1)]
        recorder.step(step, groups, trained(*groups))
    recorder.end()
    rows = rows_of(tmp_path / "records")
    assert [(row["step"], row["group"], row["sample"]) for row in rows] == [
        (step, 10 * step + group, place) for step in (1, 2) for group in (0, 1) for place in (0, 1)
    ]
    assert {row["version"] for row in rows} == {"run:2:1", "run:2:2"}


def test_none_keeps_no_samples_and_makes_no_folder(
    make: Callable[..., Recorder], board: ProgressBoard, tmp_path: Path
) -> None:
    recorder = make(records("None"))
    for step in (1, 2, 3, 4):
        recorder.step(step, [used()], ())
        recorder.report(record(step))
    recorder.end()
    assert names_of(tmp_path) == ["rewards.csv"]
    assert outcomes(board) == {}


def test_sampled_writes_so_many_whole_groups_of_each_step(make: Callable[..., Recorder], tmp_path: Path) -> None:
    recorder = make(records("Sampled", groupsPerStep=2))
    groups = [used(number) for number in range(8)]
    recorder.step(1, groups, trained(*groups))
    recorder.step(2, groups[:1], trained(*groups[:1]))
    recorder.end()
    rows = rows_of(tmp_path / "records")
    for step, count in ((1, 2), (2, 1)):
        found = [row["group"] for row in rows if row["step"] == step]
        assert len(found) == 2 * count
        assert len(set(found)) == count


def test_sampled_prefers_no_place_among_the_groups_and_draws_a_step_again_alike() -> None:
    def drawn() -> list[int]:
        made = Recorder(Path("unused"), records("Sampled"), ProgressBoard(), label)
        groups = [used(number) for number in range(4)]
        return [made._chosen(step, groups, "Sampled")[0].group.id for step in range(400)]

    counts = [drawn().count(number) for number in range(4)]
    assert min(counts) > 70, "of 100 expected"
    assert drawn() == drawn()


def test_a_volume_that_is_too_slow_costs_records_and_no_time(
    make: Callable[..., Recorder], board: ProgressBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, busy = threading.Event(), threading.Event()
    write = StepFiles.write

    def slowly(self: StepFiles, samples: StepSamples) -> int:
        busy.set()
        assert slow.wait(20)
        return write(self, samples)

    monkeypatch.setattr(StepFiles, "write", slowly)
    recorder = make(records())
    recorder.step(1, [used()], ())
    assert busy.wait(20)
    for step in (2, 3, 4, 5):
        recorder.step(step, [used()], ())
    (notice,) = board.snapshot().notices
    assert notice.reason == "RecordsIncomplete"
    assert "more slowly" in notice.message
    slow.set()
    recorder.end()
    assert names_of(tmp_path / "records") == [f"step-0000000{step}.jsonl" for step in (1, 2, 3)]
    assert outcomes(board) == {"written": 3, "dropped": 2}


def test_what_max_size_removes_is_told_once(make: Callable[..., Recorder], board: ProgressBoard) -> None:
    recorder = make(records(maxSize="1"))
    for step in (1, 2, 3):
        recorder.step(step, [used()], ())
        wait_until(partial(has_written, board, step))
    recorder.end()
    (notice,) = board.snapshot().notices
    assert "spec.trainer.records.maxSize, 1" in notice.message
    assert outcomes(board) == {"written": 3, "removed": 2}


def test_a_full_volume_costs_records_and_raises_an_alarm_until_it_takes_them_again(
    make: Callable[..., Recorder], board: ProgressBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: StepFiles, samples: StepSamples) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder = make(records())
    with monkeypatch.context() as patch:
        patch.setattr(StepFiles, "write", full)
        recorder.step(1, [used()], ())
        wait_until(lambda: len(board.snapshot().alarms) == 1)
        (alarm,) = board.snapshot().alarms
        assert alarm.reason == "RecordsFailed"
        assert "No space left on device" in alarm.message
    recorder.step(2, [used()], ())
    recorder.end()
    assert board.snapshot().alarms == []
    assert names_of(tmp_path / "records") == ["step-00000002.jsonl"]


def test_rows_of_rewards_csv_wait_for_room(
    make: Callable[..., Recorder], board: ProgressBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make(records("None"))
    recorder.report(record(1))
    with monkeypatch.context() as patch:

        def half(self: RewardsFile, *rows: StepRecord) -> None:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

        patch.setattr(RewardsFile, "append", half)
        recorder.report(record(2))
        (alarm,) = board.snapshot().alarms
        assert "rewards.csv (Disk quota exceeded)" in alarm.message
    recorder.report(record(3))
    assert board.snapshot().alarms == []
    lines = (tmp_path / "rewards.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["step", "1", "2", "3"]


def test_half_a_row_of_rewards_csv_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = RewardsFile(tmp_path / "rewards.csv")
    rewards.begin(0)
    rewards.append(record(1))
    before = (tmp_path / "rewards.csv").read_bytes()

    class Half:
        """A writer on a volume that becomes full."""

        def __init__(self, file: Any) -> None:
            self._file = file

        def writerows(self, rows: Any) -> None:
            self._file.write("2,0.")
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("csv.writer", Half)
    with pytest.raises(OSError, match="No space left"):
        rewards.append(record(2))
    assert (tmp_path / "rewards.csv").read_bytes() == before


def test_an_alarm_stands_while_one_of_both_kinds_of_records_fails(
    make: Callable[..., Recorder], board: ProgressBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: RewardsFile, *rows: StepRecord) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder = make(records())
    monkeypatch.setattr(RewardsFile, "append", full)
    recorder.report(record(1))
    recorder.step(1, [used()], ())
    recorder.end()
    assert outcomes(board) == {"written": 1}
    assert [alarm.reason for alarm in board.snapshot().alarms] == ["RecordsFailed"]


def test_the_end_waits_for_the_last_steps_and_not_for_ever(
    make: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr(recorder_module, "_END_SECONDS", 0.05)
    monkeypatch.setattr(StepFiles, "write", lambda self, samples: never.wait(20))
    recorder = make(records())
    recorder.step(1, [used()], ())
    recorder.end()
    assert recorder._thread.is_alive()
    never.set()


def test_a_checkpoint_finds_the_samples_of_its_steps_written(
    make: Callable[..., Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = StepFiles.write

    def slowly(self: StepFiles, samples: StepSamples) -> int:
        time.sleep(0.1)
        return write(self, samples)

    monkeypatch.setattr(StepFiles, "write", slowly)
    recorder = make(records())
    for step in (1, 2):
        recorder.step(step, [used()], ())
    recorder.settle()
    assert names_of(tmp_path / "records") == ["step-00000001.jsonl", "step-00000002.jsonl"]
    recorder.end()


def test_a_checkpoint_does_not_wait_for_ever_for_a_volume(
    make: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr(recorder_module, "_END_SECONDS", 0.05)
    monkeypatch.setattr(StepFiles, "write", lambda self, samples: never.wait(20))
    recorder = make(records())
    recorder.step(1, [used()], ())
    recorder.settle()
    recorder.end()
    never.set()


def test_a_recorder_that_never_began_ends() -> None:
    Recorder(Path("unused"), records(), ProgressBoard(), label).end()


def test_outcomes_are_metrics(make: Callable[..., Recorder], board: ProgressBoard) -> None:
    recorder = make(records())
    recorder.step(1, [used()], ())
    recorder.end()
    name, labels = "gymtrain_trainer_recorded_steps_total", {"outcome": "written"}
    assert registry(board).get_sample_value(name, labels) == 1.0


# --- what users read ---


def test_the_page_explains_every_column_in_order() -> None:
    page = PAGE.split("## Columns")[1].split("## ")[0]
    table = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| `")]
    named = [name.strip(" `") for cell in table for name in cell.split(",")]
    assert [name for name in named if name in COLUMNS] == list(COLUMNS)
