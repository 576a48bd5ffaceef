"""The final model's folder is whole, or not there under its name."""

from pathlib import Path

import pytest

from gymtrain_trainer.checkpoints.final_model import drafted_model, model_folder
from gymtrain_trainer.checkpoints.folder import drop_cut_off


def write(run_folder: Path, content: str, error: Exception | None = None) -> None:
    with drafted_model(run_folder, leads=True) as draft:
        draft.mkdir()
        (draft / "model.safetensors").write_text(content)
        assert draft != model_folder(run_folder)
        if error is not None:
            raise error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_model_gets_its_name_once_it_is_whole(tmp_path: Path) -> None:
    write(tmp_path, "first")
    assert names(tmp_path) == ["model"]
    assert (model_folder(tmp_path) / "model.safetensors").read_text() == "first"


def test_a_later_model_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    write(tmp_path, "first")
    (model_folder(tmp_path) / "model-00002-of-00002.safetensors").touch()
    write(tmp_path, "second")
    assert names(tmp_path) == ["model"]
    assert names(model_folder(tmp_path)) == ["model.safetensors"]
    assert (model_folder(tmp_path) / "model.safetensors").read_text() == "second"


def test_a_model_that_cannot_be_written_leaves_nothing_and_the_earlier_one_stays(tmp_path: Path) -> None:
    write(tmp_path, "first")
    with pytest.raises(OSError, match="full"):
        write(tmp_path, "sec", OSError("full"))
    assert names(tmp_path) == ["model"]
    assert (model_folder(tmp_path) / "model.safetensors").read_text() == "first"


def test_a_model_whose_process_was_killed_is_removed_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / ".model").mkdir()
    (tmp_path / ".model" / "model.safetensors").write_text("fir")
    assert drop_cut_off(tmp_path) == [".model"]
    assert names(tmp_path) == []


def test_what_a_killed_process_left_is_no_part_of_the_next_model(tmp_path: Path) -> None:
    (tmp_path / ".model").mkdir()
    (tmp_path / ".model" / "model-00002-of-00002.safetensors").write_text("fir")
    write(tmp_path, "first")
    assert names(model_folder(tmp_path)) == ["model.safetensors"]


def test_other_ranks_learn_where_to_write_and_leave_the_folders_alone(tmp_path: Path) -> None:
    (tmp_path / ".model").mkdir()  # rank 0 has begun
    with drafted_model(tmp_path, leads=False) as draft:
        assert draft == tmp_path / ".model"
    assert names(tmp_path) == [".model"]
