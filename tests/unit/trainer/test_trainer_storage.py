"""A full checkpoint volume is said to be one."""

import errno
from pathlib import Path

import pytest

from gymtrain_api.wiring import ExitCode
from gymtrain_trainer.checkpoints.folder import checkpoint_folder, drop_cut_off, last_checkpoint
from gymtrain_trainer.checkpoints.saving import checkpoint_volume
from gymtrain_trainer.checkpoints.volume import explained
from gymtrain_trainer.errors import RolloutsStalledError, StorageError
from tests.unit.trainer.test_trainer_entry import context, save


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded", "/checkpoints/x"),
        RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 576 vs 470"),
        ValueError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_volume_is_named_whatever_it_ends_in(error: Exception, tmp_path: Path) -> None:
    named = pytest.raises(StorageError, match=r"checkpoint volume \(PersistentVolumeClaim ck\)")
    with named as found, explained(tmp_path, "PersistentVolumeClaim ck"):
        raise error
    assert "MB free" in str(found.value)
    assert found.value.exit_code == ExitCode.RETRY


def test_an_error_behind_another_is_found(tmp_path: Path) -> None:
    def save_it() -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("saving failed") from error

    with pytest.raises(StorageError, match="No space left"), explained(tmp_path, "ck"):
        save_it()


@pytest.mark.parametrize("error", [ConnectionResetError(errno.ECONNRESET, "reset"), KeyError("x")])
def test_other_errors_are_left_as_they_are(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)), explained(tmp_path, "ck"):
        raise error


def test_the_trainers_own_errors_are_left_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(RolloutsStalledError), explained(tmp_path, "ck"):
        raise RolloutsStalledError("last error: No space left on device")


def test_what_a_full_disk_cut_off_is_removed_and_the_whole_one_is_resumed(tmp_path: Path) -> None:
    save(tmp_path, 10)
    save(tmp_path, 20, whole=False)
    (tmp_path / "model").mkdir()
    assert drop_cut_off(tmp_path) == ["checkpoint-20"]
    assert not checkpoint_folder(tmp_path, 20).exists()
    assert (tmp_path / "model").exists()
    found = last_checkpoint(tmp_path, "u1")
    assert found is not None
    assert found.state.step == 10


def test_the_volume_is_named_as_the_spec_does(tmp_path: Path) -> None:
    assert (
        checkpoint_volume(context(tmp_path, trainer={"checkpoint": {"claimName": "ck"}})) == "PersistentVolumeClaim ck"
    )
    assert "size 5Gi" in checkpoint_volume(context(tmp_path, trainer={"checkpoint": {"size": "5Gi"}}))
    assert "names none" in checkpoint_volume(context(tmp_path))
