"""What resuming needs beside the framework's own checkpoint: where the rollout worker stood.

`gymtrain.json` is written into a checkpoint's folder last, so its presence also says that the checkpoint is whole:
a pod that dies while it saves, or finds the disk full, leaves a folder without it. Such a folder is passed over, and
removed at the next start: it takes space, and would count among the checkpoints that are kept.

A volume may hold the checkpoints of an earlier run of the same name. They aren't this run's, unless spec.resumeFrom
says so: it starts at step 0, and what was there is moved into `previous-N`, which the run tells.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gymtrain_trainer.checkpoints.final_model import DRAFT
from gymtrain_trainer.data.order import Place

STATE_FILE = "gymtrain.json"
BEST = "best"  # a copy of the checkpoint with the highest validation reward: evaluation/best.py
OWNER_FILE = ".gymtrain-run"  # uid of the run that the folder belongs to
_FOLDER = re.compile(r"^checkpoint-(\d+)$")
_PREVIOUS = re.compile(r"^previous-(\d+)$")


class WorkerState(BaseModel):
    """Content of gymtrain.json."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: int
    position: int  # of the draw order: the first that isn't done
    done: tuple[int, ...] = ()  # later ones that are
    attempt: int  # that wrote it
    uid: str = ""  # of the run
    data: str = ""  # digest of what `position` is about; empty of an earlier release
    kind: str = ""  # see TrainingSettings.checkpoint_kind; empty of an earlier release

    @property
    def place(self) -> Place:
        """Where rollouts go on."""
        return Place(self.position, self.done)


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint."""

    folder: Path
    state: WorkerState


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    """Where a framework puts the checkpoint of a step."""
    return run_folder / f"checkpoint-{step}"


def write_state(folder: Path, state: WorkerState) -> None:
    """Marks the checkpoint as whole, atomically and durably."""
    draft = folder / f".{STATE_FILE}"
    with draft.open("w") as file:
        file.write(state.model_dump_json())
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / STATE_FILE)


@dataclass(frozen=True)
class SetAside:
    """What was moved from an earlier run: the folder inside the run's, and the checkpoints to resume from."""

    folder: str
    names: tuple[str, ...]


def claim_folder(folder: Path, uid: str, *, goes_on: bool = False, after: int | None = None) -> SetAside | None:
    """Makes the folder this run's, moving what an earlier run left into `previous-N`. Rank 0 only.

    Args:
        folder: of the run.
        uid: that the run's checkpoints carry.
        goes_on: the run goes on from what is there, which stays.
        after: it goes on from the checkpoint of this step: later ones, of another way, are still moved.
    """
    folder.mkdir(parents=True, exist_ok=True)
    owner = folder / OWNER_FILE
    moved = None
    if owner.exists() and owner.read_text() != uid:
        if not goes_on:
            moved = _set_aside(folder, [e.name for e in folder.iterdir() if e.name not in {"lost+found", OWNER_FILE}])
        elif after is not None:
            moved = _set_aside(folder, [name for name in os.listdir(folder) if (_step(name) or 0) > after])
    owner.write_text(uid)
    return moved


def _set_aside(folder: Path, names: list[str]) -> SetAside | None:
    numbers = [int(m[1]) for name in os.listdir(folder) if (m := _PREVIOUS.match(name))]
    names = sorted(name for name in names if not _PREVIOUS.match(name))
    if not names:
        return None
    aside = folder / f"previous-{1 + max(numbers, default=0)}"
    aside.mkdir()
    for name in names:
        (folder / name).rename(aside / name)
    models = sorted((name for name in names if _step(name) is not None), key=lambda name: _step(name) or 0)
    return SetAside(aside.name, (*models, *(name for name in names if name == "model")))


def drop_cut_off(folder: Path) -> list[str]:
    """Removes checkpoints, and a final model, that aren't whole; returns their names. Rank 0 only, before training."""
    cut_off = [
        name
        for name in os.listdir(folder)
        if name == DRAFT
        or (_FOLDER.match(name) and (folder / name).is_dir() and not (folder / name / STATE_FILE).exists())
    ]
    for name in cut_off:
        shutil.rmtree(folder / name, ignore_errors=True)
    return sorted(cut_off)


def last_checkpoint(folder: Path, uid: str | None = None) -> Checkpoint | None:
    """The whole checkpoint of the highest step, if there is one: of this run, or of any where `uid` is None."""
    return next((c for c in reversed(whole_checkpoints(folder)) if uid is None or c.state.uid == uid), None)


def whole_checkpoints(folder: Path) -> list[Checkpoint]:
    """All whole checkpoints in a folder, by step. A folder that can't be read has none."""
    found = []
    try:
        steps = sorted(step for name in os.listdir(folder) if (step := _step(name)) is not None)
    except OSError:
        return []
    for step in steps:
        if (checkpoint := _whole(checkpoint_folder(folder, step))) is not None:
            found.append(checkpoint)
    return found


def best_checkpoint(folder: Path) -> Checkpoint | None:
    """The one that evaluations found best, if it was kept."""
    return _whole(folder / BEST)


def _whole(folder: Path) -> Checkpoint | None:
    try:
        return Checkpoint(folder, WorkerState.model_validate_json((folder / STATE_FILE).read_bytes()))
    except (OSError, ValidationError):
        return None


def _step(name: str) -> int | None:
    match = _FOLDER.match(name)
    return int(match[1]) if match else None
