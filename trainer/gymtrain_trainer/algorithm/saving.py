"""Checkpoints beside TRL's steps: the worker's place in each, and a last one on the way out."""

import contextlib
import logging
from typing import Any

from gymtrain_trainer.algorithm.checkpoints import WorkerState, checkpoint_folder, last_checkpoint, write_state
from gymtrain_trainer.context import Context
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
    state = WorkerState(step=step, position=worker.resume_position(), attempt=context.attempt, uid=context.run.uid)
    write_state(folder, state)
    log.info("checkpoint %s", folder)


def save_on_the_way_out(context: Context, trainer: Any, worker: RolloutWorker | None) -> None:
    """A last checkpoint of a run that was stopped while it waited; it stands at a step's end then.

    One process only: with more, the others are inside a collective and can't take part.
    """
    step = trainer.state.global_step
    if not context.run.spec.trainer.checkpoint or context.processes > 1 or worker is None or step == 0:
        return
    last = last_checkpoint(context.run_folder, context.run.uid)
    if last is None or last.state.step < step:
        with contextlib.suppress(OSError):
            trainer._save_checkpoint(trainer.model, trial=None)
            write_worker_state(context, step, worker)
