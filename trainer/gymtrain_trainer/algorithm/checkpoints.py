"""What resuming needs beside TRL's own checkpoint: where the rollout worker stood.

`gymtrain.json` is written into a checkpoint's folder last, so its presence also says that the checkpoint is whole:
a pod that dies while it saves, or finds the disk full, leaves a folder without it. Such a folder is passed over, and
removed at the next start: it takes space, and TRL would count it among the checkpoints that it keeps.

A user's volume may hold the checkpoints of an earlier run of the same name. They aren't this run's: it starts anew, and
what was there is moved into `previous-N`.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

STATE_FILE = "gymtrain.json"
OWNER_FILE = ".gymtrain-run"  # uid of the run that the folder belongs to
_FOLDER = re.compile(r"^checkpoint-(\d+)$")


class WorkerState(BaseModel):
    """Content of gymtrain.json."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: int
    position: int  # of the draw order: where rollouts go on
    attempt: int  # that wrote it
    uid: str = ""  # of the run


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint."""

    folder: Path
    state: WorkerState


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    """Where TRL puts the checkpoint of a step."""
    return run_folder / f"checkpoint-{step}"


def write_state(folder: Path, state: WorkerState) -> None:
    """Marks the checkpoint as whole, atomically and durably."""
    draft = folder / f".{STATE_FILE}"
    with draft.open("w") as file:
        file.write(state.model_dump_json())
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / STATE_FILE)


def claim_folder(folder: Path, uid: str) -> None:
    """Makes the folder this run's, moving what an earlier run left into `previous-N`. Rank 0 only."""
    folder.mkdir(parents=True, exist_ok=True)
    owner = folder / OWNER_FILE
    if owner.exists() and owner.read_text() != uid:
        number = 1 + sum(name.startswith("previous-") for name in os.listdir(folder))
        aside = folder / f"previous-{number}"
        aside.mkdir()
        for entry in list(folder.iterdir()):
            if not entry.name.startswith("previous-") and entry.name != "lost+found":
                entry.rename(aside / entry.name)
    owner.write_text(uid)


def drop_cut_off(folder: Path) -> list[str]:
    """Removes checkpoints that aren't whole; returns their names. Rank 0 only, before training."""
    cut_off = [
        name
        for name in os.listdir(folder)
        if _FOLDER.match(name) and (folder / name).is_dir() and not (folder / name / STATE_FILE).exists()
    ]
    for name in cut_off:
        shutil.rmtree(folder / name, ignore_errors=True)
    return sorted(cut_off)


def last_checkpoint(folder: Path, uid: str) -> Checkpoint | None:
    """The whole checkpoint of the highest step of this run, if there is one."""
    if not folder.is_dir():
        return None
    steps = sorted((int(m[1]) for name in os.listdir(folder) if (m := _FOLDER.match(name))), reverse=True)
    for step in steps:
        checkpoint = checkpoint_folder(folder, step)
        try:
            state = WorkerState.model_validate_json((checkpoint / STATE_FILE).read_bytes())
        except (OSError, ValidationError):
            continue
        if state.uid == uid:
            return Checkpoint(checkpoint, state)
    return None
