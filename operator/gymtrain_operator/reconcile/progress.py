"""The trainer's own report, as the status shows it."""

import json

from pydantic import ValidationError

from gymtrain_api.status import Progress
from gymtrain_api.wiring import TrainerProgress
from gymtrain_operator.reconcile.times import to_seconds, to_text

QUIET_SECONDS = 10
"""Counters alone are written at most this often; a new step is written at once."""

_BEFORE_TRAINING = {"starting", "waiting_for_servers"}


def shown_progress(report: TrainerProgress | None, before: Progress | None, now: float) -> Progress | None:
    """`status.progress` after a report. A trainer that starts again doesn't take the step back to 0 while
    it loads its checkpoint."""
    if report is None or (report.phase in _BEFORE_TRAINING and before is not None):
        return before
    last = to_seconds(before.last_update_time) if before else None
    if (
        before
        and before.step == report.step
        and last is not None
        and now - last < QUIET_SECONDS
        and report.phase not in {"complete", "failed"}
    ):
        return before
    fresh = Progress(
        step=report.step,
        max_steps=report.max_steps,
        reward=None if report.reward is None else f"{report.reward:.4f}",
        tokens_per_second=None if report.tokens_per_second is None else f"{report.tokens_per_second:.1f}",
        rollouts=report.rollouts,
        failed_rollouts=report.failed_rollouts,
        dropped_groups=report.dropped_groups,
        parity=None if report.parity is None else f"{report.parity:.5f}",
        last_update_time=to_text(report.updated_at) if report.updated_at else to_text(now),
    )
    # A trainer that repeats itself changes nothing but the time.
    same = before is not None and fresh.model_copy(update={"last_update_time": before.last_update_time}) == before
    return before if same else fresh


def parse_report(text: str) -> TrainerProgress | None:
    """A report from a termination message; None where the text is something else."""
    try:
        return TrainerProgress.model_validate(json.loads(text))
    except (ValueError, ValidationError):
        return None
