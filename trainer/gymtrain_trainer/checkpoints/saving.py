"""Checkpoints beside TRL's steps: the worker's place in each, a last one on the way out, and those that fail."""

import contextlib
import functools
import logging
import shutil
from pathlib import Path
from typing import Any

from gymtrain_trainer.checkpoints.folder import WorkerState, checkpoint_folder, last_checkpoint, write_state
from gymtrain_trainer.checkpoints.volume import trouble_of
from gymtrain_trainer.context import Context
from gymtrain_trainer.data.rows import data_digest, read_index
from gymtrain_trainer.errors import DataError
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


def write_worker_state(context: Context, step: int, worker: RolloutWorker) -> None:
    """Completes the checkpoint of a step."""
    folder = checkpoint_folder(context.run_folder, step)
    state = WorkerState(
        step=step,
        position=worker.resume_position(),
        attempt=context.attempt,
        uid=context.owner,
        data=data_of(context),
    )
    write_state(folder, state)
    log.info("checkpoint %s", folder)


def data_of(context: Context) -> str:
    """Digest of the run's data; empty where there is none to read."""
    return _data_digest(context.paths.data_index, int(context.run.spec.trainer.config.get("seed", 42)))


@functools.lru_cache(maxsize=4)
def _data_digest(index: Path, seed: int) -> str:
    try:
        return data_digest(read_index(index), seed)
    except DataError:
        return ""


class Saves:
    """A checkpoint that the volume doesn't take costs that checkpoint, not the run: an alarm stands until the next one
    is written.

    One process only. With more, an error on one rank would leave the others in a collective: there it ends the attempt.
    """

    def __init__(self, context: Context, board: ProgressBoard) -> None:
        self._context = context
        self._board = board
        self._failed = False  # the last one

    def forgive(self, trainer: Any) -> None:
        """Stands around TRL's own saving from now on."""
        if self._context.processes > 1:
            return
        save = trainer._save_checkpoint

        def save_or_say(*args: Any, **kwargs: Any) -> None:
            self._failed = False
            try:
                save(*args, **kwargs)
            except Exception as error:
                self._judge(error, trainer.state.global_step)

        trainer._save_checkpoint = save_or_say

    def complete(self, step: int, worker: RolloutWorker) -> None:
        """After TRL's saving: marks the checkpoint as whole, unless it is not."""
        if self._failed:
            return
        try:
            write_worker_state(self._context, step, worker)
        except OSError as error:
            self._judge(error, step)
        else:
            self._board.clear_alarm("CheckpointFailed")

    def _judge(self, error: Exception, step: int) -> None:
        trouble = trouble_of(error)
        if trouble is None or self._context.processes > 1:
            raise error
        self._failed = True
        folder = checkpoint_folder(self._context.run_folder, step)
        shutil.rmtree(folder, ignore_errors=True)  # it isn't whole, and takes the space of the next one
        text = (
            f"the checkpoint of step {step} could not be written ({trouble}) to {checkpoint_volume(self._context)}: "
            "make room there. Training goes on; an attempt that fails now goes back to the checkpoint before"
        )
        log.error("%s", text)
        self._board.set_alarm("CheckpointFailed", text)


def save_on_the_way_out(context: Context, trainer: Any, worker: RolloutWorker | None) -> None:
    """A last checkpoint of a run that was stopped while it waited; it stands at a step's end then.

    One process only: with more, the others are inside a collective and can't take part; there rollouts end instead
    (`stop.end_rollouts_on_signal`), once a step was trained.
    """
    step = trainer.state.global_step
    if not context.run.spec.trainer.checkpoint or context.processes > 1 or worker is None or step == 0:
        return
    last = last_checkpoint(context.run_folder)  # be it one that the run went on from: it is not written over
    if last is None or last.state.step < step:
        with contextlib.suppress(OSError):
            trainer._save_checkpoint(trainer.model, trial=None)
            write_worker_state(context, step, worker)
