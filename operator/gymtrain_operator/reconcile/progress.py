"""The trainer's report, as the status shows it: progress, Healthy, and what it has to say once."""

import json
from dataclasses import replace

from pydantic import ValidationError

from gymtrain_api.condition_table import REASONS
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import MAX_LOST_ROLLOUTS, GymTrainingRunStatus, LostRollouts, Progress
from gymtrain_api.times import to_seconds, to_text
from gymtrain_api.wiring import TrainerProgress
from gymtrain_operator.reconcile.changes import Changes
from gymtrain_operator.reconcile.conditions import StatedCondition, false_condition, shorten, true_condition
from gymtrain_operator.reconcile.events import MAX_NOTE, Event

QUIET_SECONDS = 10
"""Counters alone are written at most this often; a new step is written at once."""

_KNOWN = frozenset(str(reason) for reason in Reason)
_BEFORE_TRAINING = {"starting", "waiting_for_servers"}
_MEASURES = {"waiting_for_rollouts", "training", "complete"}
# Alarms that may stand for a whole run, as of an environment of several that never works: they must not hide what
# comes later.
_LASTING = {Reason.ENVIRONMENT_FAILING, Reason.NO_LEDGER_ENTRY, Reason.RECORDS_FAILED}


def shown_progress(report: TrainerProgress | None, before: Progress | None, now: float) -> Progress | None:
    """Returns `status.progress` after a report. A trainer that starts again doesn't take the step back to 0 while
    it loads its checkpoint."""
    if report is None or (report.phase in _BEFORE_TRAINING and before is not None):
        return before
    last = to_seconds(before.last_update_time) if before else None
    if (
        before
        and (before.step, before.validation_step) == (report.step, report.validation_step)
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
        validation_reward=None if report.validation_reward is None else f"{report.validation_reward:.4f}",
        validation_step=report.validation_step,
        best_validation_reward=None
        if report.best_validation_reward is None
        else f"{report.best_validation_reward:.4f}",
        best_step=report.best_step,
        rollouts=report.rollouts,
        failed_rollouts=report.failed_rollouts,
        lost_rollouts=_lost_rollouts(report) or None,
        dropped_groups=report.dropped_groups,
        parity=None if report.parity is None else f"{report.parity:.5f}",
        last_update_time=to_text(report.updated_at) if report.updated_at else to_text(now),
    )
    # A trainer that repeats itself changes nothing but the time.
    same = before is not None and fresh.model_copy(update={"last_update_time": before.last_update_time}) == before
    return before if same else fresh


def _lost_rollouts(report: TrainerProgress) -> list[LostRollouts]:
    return [
        LostRollouts(environment=one.environment, kind=one.kind, rollouts=one.rollouts)
        for one in report.lost_rollouts[:MAX_LOST_ROLLOUTS]
    ]


def health(report: TrainerProgress | None, before: GymTrainingRunStatus) -> tuple[StatedCondition, ...]:
    """States Healthy: False while an alarm stands; what the trainer said last where it says nothing now; nothing before
    a first step."""
    if report is not None and report.alarms:
        alarms = sorted(report.alarms, key=lambda alarm: alarm.reason in _LASTING)  # the others in the order they came
        messages = "; ".join(alarm.message for alarm in alarms)
        return (false_condition(ConditionType.HEALTHY, Reason(alarms[0].reason), messages),)
    if report is not None and report.phase in _MEASURES and (report.step > 0 or report.phase == "complete"):
        return (true_condition(ConditionType.HEALTHY, Reason.NO_ALARM),)
    old = before.condition(ConditionType.HEALTHY)
    if old is None or (report is not None and report.phase in _BEFORE_TRAINING):
        return ()
    return (StatedCondition.unchanged(old),)


def with_notices(changes: Changes, report: TrainerProgress | None) -> Changes:
    """Returns the changes with the trainer's notices in what Progressing says."""
    texts = _notices(report)
    if not texts:
        return changes

    def extended(condition: StatedCondition) -> StatedCondition:
        if condition.type != ConditionType.PROGRESSING:
            return condition
        new = [text for text in texts.values() if text not in condition.message]
        return replace(condition, message=". ".join([part for part in (condition.message.rstrip("."), *new) if part]))

    return replace(changes, conditions=tuple(extended(condition) for condition in changes.conditions))


def notice_events(before: GymTrainingRunStatus, report: TrainerProgress | None) -> tuple[Event, ...]:
    """Returns events of the notices that Progressing doesn't show yet."""
    old = before.condition(ConditionType.PROGRESSING)
    shown = old.message if old else ""
    return tuple(
        Event(REASONS[reason].event or "Normal", reason, text)
        for reason, text in _notices(report).items()
        if text not in shown
    )


def _notices(report: TrainerProgress | None) -> dict[Reason, str]:
    """Returns the notices whose reason this release knows."""
    return {
        Reason(notice.reason): shorten(notice.message, MAX_NOTE)
        for notice in (report.notices if report else ())
        if notice.reason in _KNOWN
    }


def parse_report(text: str) -> TrainerProgress | None:
    """Reads a report from a termination message; None if the text is something else."""
    try:
        return TrainerProgress.model_validate(json.loads(text))
    except (ValueError, ValidationError):
        return None
