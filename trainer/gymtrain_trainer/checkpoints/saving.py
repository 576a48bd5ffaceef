"""Checkpoints beside the framework's: the worker's place in each, a last one on the way out, and those that fail."""

import contextlib
import functools
import logging
import shutil
from pathlib import Path

from gymtrain_trainer.checkpoints.folder import WorkerState, checkpoint_folder, last_checkpoint, write_state
from gymtrain_trainer.checkpoints.volume import trouble_of
from gymtrain_trainer.context import Context
from gymtrain_trainer.data.rows import data_digest, read_index
from gymtrain_trainer.errors import DataError
from gymtrain_trainer.framework import Trainer
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.worker import RolloutWorker

log = logging.getLogger(__name__)


def checkpoint_volume(context: Context) -> str:
    """The volume of the checkpoints, as the user knows it."""
    checkpoint = context.run.spec.trainer.checkpoint
    if checkpoint is None:
        return f"the pod's own disk at {context.run_folder}: spec.trainer.checkpoint names none"
    if checkpoint.claim_name:
        return f"PersistentVolumeClaim {checkpoint.claim_name}"
    return f"spec.trainer.checkpoint, size {checkpoint.size}"


def data_of(context: Context, seed: int) -> str:
    """Digest of the run's data, which is drawn by `seed`; empty if there is none to read."""
    return _data_digest(context.paths.data_index, seed)


@functools.lru_cache(maxsize=4)
def _data_digest(index: Path, seed: int) -> str:
    try:
        return data_digest(read_index(index), seed)
    except DataError:
        return ""


class Saves:
    """The checkpoints of rank 0.

    One that the volume doesn't take costs that checkpoint, not the run: an alarm stands until the next one is written.
    That is for one process only. With more, an error on one rank would leave the others in a collective: there it ends
    the attempt.
    """

    def __init__(self, context: Context, board: ProgressBoard, seed: int, kind: str = "") -> None:
        """`seed`: of the draw order; `kind`: `TrainingSettings.checkpoint_kind`."""
        self._context = context
        self._board = board
        self._seed = seed
        self._kind = kind
        self._failed = False  # the last one

    def failed(self, step: int, error: Exception) -> None:
        """The framework could not write the checkpoint of a step; raises `error` where training can't continue."""
        self._forgive(step, error)
        self._failed = True

    def complete(self, step: int, worker: RolloutWorker) -> None:
        """After the framework's saving: marks the checkpoint as whole, unless it is not."""
        failed, self._failed = self._failed, False
        if failed:
            return
        try:
            self._mark(step, worker)
        except OSError as error:
            self._forgive(step, error)
        else:
            self._board.clear_alarm("CheckpointFailed")

    def on_the_way_out(self, trainer: Trainer, worker: RolloutWorker) -> None:
        """A last checkpoint of a run that was stopped while it waited; it stands at a step's end then.

        One process only: with more, the others are inside a collective and can't take part; there rollouts end instead
        (as `framework.py` asks of a trainer), once a step was trained.
        """
        step = trainer.step
        if not self._context.run.spec.trainer.checkpoint or self._context.processes > 1 or step == 0:
            return
        last = last_checkpoint(self._context.run_folder)  # be it one that the run went on from: it is not written over
        if last is None or last.state.step < step:
            with contextlib.suppress(OSError):
                trainer.save_checkpoint()
                self._mark(step, worker)

    def _forgive(self, step: int, error: Exception) -> None:
        trouble = trouble_of(error)
        if trouble is None or self._context.processes > 1:
            raise error
        folder = checkpoint_folder(self._context.run_folder, step)
        shutil.rmtree(folder, ignore_errors=True)  # it isn't whole, and takes the space of the next one
        text = (
            f"the checkpoint of step {step} could not be written ({trouble}) to {checkpoint_volume(self._context)}: "
            "make room there. Training continues; an attempt that fails now falls back to the checkpoint before"
        )
        log.error("%s", text)
        self._board.set_alarm("CheckpointFailed", text)

    def _mark(self, step: int, worker: RolloutWorker) -> None:
        folder, place = checkpoint_folder(self._context.run_folder, step), worker.place()
        state = WorkerState(
            step=step,
            position=place.first_open,
            done=place.done,
            attempt=self._context.attempt,
            uid=self._context.owner,
            data=data_of(self._context, self._seed),
            kind=self._kind,
        )
        write_state(folder, state)
        log.info("checkpoint %s", folder)
