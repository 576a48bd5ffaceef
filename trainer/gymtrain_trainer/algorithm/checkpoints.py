"""What resuming needs beside TRL's own checkpoint: where the rollout worker stood.

`gymtrain.json` is written into a checkpoint's folder last, so its presence also says that the checkpoint is whole:
a pod that dies while it saves leaves a folder without it, which is passed over.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

STATE_FILE = "gymtrain.json"
_FOLDER = re.compile(r"^checkpoint-(\d+)$")


class WorkerState(BaseModel):
    """Content of gymtrain.json."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: int
    position: int  # of the draw order: where rollouts go on
    attempt: int  # that wrote it


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


def last_checkpoint(run_folder: Path) -> Checkpoint | None:
    """The whole checkpoint of the highest step, if there is one."""
    if not run_folder.is_dir():
        return None
    steps = sorted((int(m[1]) for name in os.listdir(run_folder) if (m := _FOLDER.match(name))), reverse=True)
    for step in steps:
        folder = checkpoint_folder(run_folder, step)
        try:
            return Checkpoint(folder, WorkerState.model_validate_json((folder / STATE_FILE).read_bytes()))
        except (OSError, ValidationError):
            continue
    return None
