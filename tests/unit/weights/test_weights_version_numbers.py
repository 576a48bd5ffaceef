"""Numbers and labels of weight versions, across processes of one attempt, and whose weights a group was made with."""

import json
from pathlib import Path

import pytest

from gymtrain_trainer.weights.version_numbers import SYNC_FILE, SyncNumberFile, SyncNumbers, foreign_weights

POD = "http://10.0.0.5:8000"


def test_no_number_is_given_out_twice_whatever_became_of_the_sync() -> None:
    numbers = SyncNumbers("run", 1)
    given = [numbers.next() for _ in range(3)]
    assert given == [1, 2, 3]
    assert numbers.current == 0


def test_a_process_goes_on_after_the_numbers_of_the_one_before() -> None:
    assert SyncNumbers("run", 1, 16).next() == 17


def test_labels_count_trls_versions() -> None:
    numbering = SyncNumbers("run", 1)
    numbering.sent("run:1:1")
    numbering.sent("run:1:2")
    assert [numbering.label(version) for version in (1, 2, 3)] == ["run:1:1", "run:1:2", "run:1:3"]
    assert [numbering.model_version(f"run:1:{number}") for number in (1, 2, 3)] == [1, 2, 3]


def test_a_number_that_a_failed_try_used_has_the_weights_of_the_next_version() -> None:
    numbering = SyncNumbers("run", 1)
    numbering.sent("run:1:1")
    numbering.sent("run:1:3")
    assert [numbering.model_version(f"run:1:{number}") for number in (1, 2, 3)] == [1, 2, 2]
    assert numbering.label(2) == "run:1:3"


def test_labels_of_another_run_or_attempt_are_no_version_of_ours() -> None:
    numbering = SyncNumbers("run", 1)
    assert [numbering.model_version(label) for label in ("run:2:1", "other:1:1", "default", "run:1:")] == [None] * 4


def test_labels_of_an_earlier_process_are_older_than_everything_here() -> None:
    numbering = SyncNumbers("run", 1, start=7)
    numbering.sent("run:1:8")
    assert [numbering.model_version(f"run:1:{number}") for number in (6, 7, 8)] == [-1, 0, 1]


def test_a_label_that_is_not_newer_is_refused() -> None:
    numbering = SyncNumbers("run", 1, start=7)
    with pytest.raises(ValueError, match="run:1:1"):
        numbering.sent("run:1:1")


def test_a_resumed_attempt_never_uses_a_number_again(tmp_path: Path) -> None:
    first = SyncNumberFile(tmp_path, 1)
    assert first.last() == 0
    for number in range(5):
        first.reserve(number)
    assert SyncNumberFile(tmp_path, 1).last() >= 5


def test_a_new_attempt_counts_from_the_start(tmp_path: Path) -> None:
    SyncNumberFile(tmp_path, 1).reserve(9)
    assert SyncNumberFile(tmp_path, 2).last() == 0


@pytest.mark.parametrize("text", ["", "{}", '{"attempt": 1}', "[1]"])
def test_a_broken_note_is_said_and_passed_over(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / SYNC_FILE).write_text(text)
    assert SyncNumberFile(tmp_path, 1).last() == 0
    assert SYNC_FILE in caplog.text


def test_a_full_volume_does_not_stop_a_sync(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    numbers = SyncNumberFile(tmp_path / "gone", 1)
    numbers.reserve(3)
    assert "cannot note weight version" in caplog.text


def test_without_a_volume_nothing_is_written(tmp_path: Path) -> None:
    numbers = SyncNumberFile(None, 1)
    numbers.reserve(3)
    assert numbers.last() == 0
    SyncNumberFile(tmp_path, 1).reserve(3)
    assert json.loads((tmp_path / SYNC_FILE).read_text())["attempt"] == 1


@pytest.mark.parametrize("version", ["default", "demo:0:9", "other:1:3", "demo:11:3"])
@pytest.mark.parametrize("moment", ["started", "ended"])
def test_a_group_around_other_weights_is_discarded(version: str, moment: str) -> None:
    good: dict[str, str | None] = {POD: "demo:1:3"}
    bad: dict[str, str | None] = {POD: version}
    before, after = (bad, good) if moment == "started" else (good, bad)
    reason = foreign_weights(before, after, "demo", 1)
    assert reason is not None
    assert version in reason
    assert moment in reason


def test_a_group_across_a_sync_of_the_attempt_is_kept() -> None:
    assert foreign_weights({POD: "demo:1:3"}, {POD: "demo:1:4"}, "demo", 1) is None


def test_a_pod_that_does_not_answer_discards_nothing() -> None:
    assert foreign_weights({POD: "demo:1:3"}, {POD: None}, "demo", 1) is None
