"""The folder `best` of the run's checkpoints: a copy of the checkpoint with the highest mean reward.

Its files are hard links to those of the checkpoint, so it takes no room while that is there, and stays when the
framework removes it; where the volume has no hard links they are copies. Beside them is the evaluation. The folder is
whole, or not there under its name.
"""

import json
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from gymtrain_trainer.checkpoints.folder import BEST, STATE_FILE, checkpoint_folder
from gymtrain_trainer.monitoring.evaluation_scores import EvaluationRow

log = logging.getLogger(__name__)

EVALUATION_FILE = "evaluation.json"
_DRAFT = ".best"
_EARLIER = ".best-earlier"


class BestCheckpoint:
    """Of one run; rank 0 only. An error of the volume is an OSError."""

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._folder = run_folder / BEST
        self._reward: float | None = None  # of what the folder holds
        self._wanted: Sequence[EvaluationRow] = ()  # better, but its checkpoint was not there yet

    def begin(self, step: int) -> None:
        """Training goes on from `step`: a best of a later one is of another way, and is removed."""
        earlier = self._run_folder / _EARLIER
        if earlier.exists() and not self._folder.exists():
            earlier.rename(self._folder)
        for leftover in (earlier, self._run_folder / _DRAFT):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            kept = json.loads((self._folder / EVALUATION_FILE).read_text())[0]
            self._reward = float(kept["reward"]) if kept["step"] <= step else None
        except (OSError, ValueError, LookupError, TypeError):
            self._reward = None
        if self._reward is None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def offer(self, rows: Sequence[EvaluationRow]) -> None:
        """An evaluation, its row of all environments first. Of equal ones the earliest stays."""
        row = rows[0]
        if row.counts and row.reward is not None and (self._reward is None or row.reward > self._reward):
            self._wanted = rows
            self.saved()

    def saved(self) -> None:
        """A checkpoint was saved: perhaps that of an evaluation which ended before."""
        if not self._wanted:
            return
        row = self._wanted[0]
        checkpoint = checkpoint_folder(self._run_folder, row.step)
        if not (checkpoint / STATE_FILE).exists():
            return
        self._replace(checkpoint)
        log.info("best checkpoint so far: step %d, mean reward %.4f", row.step, row.reward)
        self._reward, self._wanted = row.reward, ()

    def _replace(self, checkpoint: Path) -> None:
        draft, earlier = self._run_folder / _DRAFT, self._run_folder / _EARLIER
        shutil.rmtree(draft, ignore_errors=True)
        try:
            shutil.copytree(checkpoint, draft, copy_function=_linked)
            (draft / EVALUATION_FILE).write_text(json.dumps([asdict(row) for row in self._wanted], indent=1))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        if self._folder.exists():
            self._folder.rename(earlier)  # a folder that isn't empty can't be replaced
        draft.rename(self._folder)
        shutil.rmtree(earlier, ignore_errors=True)


def _linked(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another volume below, or a file system without links
        shutil.copy2(source, target)
    return target
