"""A checkpoint that can't be written costs that checkpoint, not the run."""

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gymtrain_trainer.checkpoints.folder import checkpoint_folder, last_checkpoint
from gymtrain_trainer.checkpoints.saving import Saves
from gymtrain_trainer.data.order import Place
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.trl.internals import tell_saves
from tests.unit.trainer.test_trainer_entry import context

FULL = OSError(errno.ENOSPC, "No space left on device")
WORKER: Any = SimpleNamespace(place=lambda: Place(7))


class Trainer:
    """TRL's, as far as saving goes."""

    def __init__(self, folder: Path, errors: list[Exception | None]) -> None:
        self.state = SimpleNamespace(global_step=0)
        self._folder = folder
        self._errors = errors
        self._save_checkpoint: Callable[[], None] = self._save

    def _save(self) -> None:
        self.state.global_step += 10
        checkpoint_folder(self._folder, self.state.global_step).mkdir(parents=True)
        if error := self._errors.pop(0):
            raise error

    def forgive(self, saves: Saves) -> None:
        """As the trainer's process has it."""
        tell_saves(self, contextlib.nullcontext, lambda error: saves.failed(self.state.global_step, error))

    def save(self, saves: Saves) -> None:
        """One checkpoint, as TRL's loop makes it."""
        self._save_checkpoint()
        saves.complete(self.state.global_step, WORKER)


def test_training_goes_on_after_a_full_disk_and_the_alarm_ends_with_the_next_checkpoint(tmp_path: Path) -> None:
    found, board = context(tmp_path), ProgressBoard()
    saves = Saves(found, board, 42)
    trainer = Trainer(found.run_folder, [None, FULL, None])
    trainer.forgive(saves)

    trainer.save(saves)
    assert board.snapshot().alarms == []
    trainer.save(saves)
    (alarm,) = board.snapshot().alarms
    assert alarm.reason == "CheckpointFailed"
    assert "step 20" in alarm.message
    assert not checkpoint_folder(found.run_folder, 20).exists(), "what was written of it takes no space"
    last = last_checkpoint(found.run_folder, found.run.uid)
    assert last is not None
    assert last.state.step == 10

    trainer.save(saves)
    assert board.snapshot().alarms == []


def test_another_error_ends_the_attempt(tmp_path: Path) -> None:
    found = context(tmp_path)
    saves = Saves(found, ProgressBoard(), 42)
    trainer = Trainer(found.run_folder, [ValueError("a bug")])
    trainer.forgive(saves)
    with pytest.raises(ValueError, match="a bug"):
        trainer.save(saves)


def test_with_several_processes_a_full_disk_ends_the_attempt(tmp_path: Path) -> None:
    found = context(tmp_path, trainer={"nodes": 2})
    saves = Saves(found, ProgressBoard(), 42)
    trainer = Trainer(found.run_folder, [FULL])
    trainer.forgive(saves)
    with pytest.raises(OSError, match="No space left"):
        trainer.save(saves)
