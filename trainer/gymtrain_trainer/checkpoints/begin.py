"""What rank 0 does before training: it claims the run's folder and tells the user what was moved."""

import logging

from gymtrain_api.conditions import Reason
from gymtrain_api.resume import ResumeFrom
from gymtrain_trainer.checkpoints.folder import best_checkpoint, claim_folder, drop_cut_off
from gymtrain_trainer.checkpoints.resume import Start, resume_from, told_aside, told_resumed
from gymtrain_trainer.checkpoints.saving import checkpoint_volume, data_of
from gymtrain_trainer.context import Context
from gymtrain_trainer.data.order import Place
from gymtrain_trainer.progress import ProgressBoard

log = logging.getLogger(__name__)


def prepare_folder(context: Context, board: ProgressBoard) -> None:
    """Claims the run's folder and removes incomplete checkpoints."""
    name, source = context.run.name, resume_from(context.run.spec)
    goes_on = source is not None and source.is_own(name)
    aside = claim_folder(context.run_folder, context.owner, goes_on=goes_on, after=_after(context, source))
    if aside is not None and aside.names:
        text = told_aside(name, aside, checkpoint_volume(context))
        log.warning("%s", text)
        board.notice(Reason.CHECKPOINTS_SET_ASIDE, text)
    for cut_off in drop_cut_off(context.run_folder):
        log.warning("removed %s: it was incomplete", cut_off)


def _after(context: Context, source: ResumeFrom | None) -> int | None:
    """The step of the checkpoint of its own that the run goes on from; None if it is the newest one, or another's."""
    if source is None or not source.is_own(context.run.name):
        return None
    if source.best:
        best = best_checkpoint(context.run_folder)
        return best.state.step if best is not None else None
    return source.step


def starting_place(context: Context, board: ProgressBoard, start: Start, seed: int) -> Place:
    """Where in the draw order, which `seed` makes, rollouts begin: a place in other data means nothing."""
    checkpoint, source = start.checkpoint, resume_from(context.run.spec)
    if checkpoint is None:
        return Place()
    if not start.resumed or source is None:
        log.info("resuming from %s, position %d", checkpoint.folder, checkpoint.state.position)
        return checkpoint.state.place
    same_data = bool(checkpoint.state.data) and checkpoint.state.data == data_of(context, seed)
    text = told_resumed(checkpoint, source, same_data=same_data)
    log.info("%s", text)
    board.notice(Reason.RESUMED_FROM_CHECKPOINT, text)
    return checkpoint.state.place if same_data else Place()
