"""Labels of weight versions, across processes of one attempt."""

import json
from pathlib import Path

import pytest

from gymtrain_trainer.weights.version_numbers import SYNC_FILE, Numbering, SyncNumberFile


def test_labels_count_trls_versions() -> None:
    numbering = Numbering("run", 1)
    numbering.sent("run:1:1")
    numbering.sent("run:1:2")
    assert [numbering.label(version) for version in (1, 2, 3)] == ["run:1:1", "run:1:2", "run:1:3"]
    assert [numbering.model_version(f"run:1:{number}") for number in (1, 2, 3)] == [1, 2, 3]


def test_a_number_that_a_failed_try_used_has_the_weights_of_the_next_version() -> None:
    numbering = Numbering("run", 1)
    numbering.sent("run:1:1")
    numbering.sent("run:1:3")
    assert [numbering.model_version(f"run:1:{number}") for number in (1, 2, 3)] == [1, 2, 2]
    assert numbering.label(2) == "run:1:3"


def test_labels_of_another_run_or_attempt_are_no_version_of_ours() -> None:
    numbering = Numbering("run", 1)
    assert [numbering.model_version(label) for label in ("run:2:1", "other:1:1", "default", "run:1:")] == [None] * 4


def test_labels_of_an_earlier_process_are_older_than_everything_here() -> None:
    numbering = Numbering("run", 1, start=7)
    numbering.sent("run:1:8")
    assert [numbering.model_version(f"run:1:{number}") for number in (6, 7, 8)] == [-1, 0, 1]


def test_a_label_that_is_not_newer_is_refused() -> None:
    numbering = Numbering("run", 1, start=7)
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
