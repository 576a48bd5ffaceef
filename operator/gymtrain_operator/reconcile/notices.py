"""What the trainer has to say once: an event, and a sentence in Progressing's message for as long as it says so."""

from dataclasses import replace

from gymtrain_api.condition_table import REASONS
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.wiring import TrainerProgress
from gymtrain_operator.reconcile.changes import Changes
from gymtrain_operator.reconcile.conditions import Claim, find, shorten
from gymtrain_operator.reconcile.events import MAX_NOTE, Event


def with_notices(changes: Changes, report: TrainerProgress | None) -> Changes:
    """The changes with the trainer's notices in what Progressing says."""
    texts = _texts(report)
    if not texts:
        return changes

    def said(claim: Claim) -> Claim:
        if claim.type != ConditionType.PROGRESSING:
            return claim
        new = [text for text in texts.values() if text not in claim.message]
        return replace(claim, message=". ".join([part for part in (claim.message.rstrip("."), *new) if part]))

    return replace(changes, claims=tuple(said(claim) for claim in changes.claims))


def notice_events(before: GymTrainingRunStatus, report: TrainerProgress | None) -> tuple[Event, ...]:
    """Events of the notices that Progressing doesn't show yet."""
    old = find(before, ConditionType.PROGRESSING)
    shown = old.message if old else ""
    return tuple(
        Event(REASONS[reason].event or "Normal", reason, text)
        for reason, text in _texts(report).items()
        if text not in shown
    )


def _texts(report: TrainerProgress | None) -> dict[Reason, str]:
    """Notices whose reason this release knows."""
    known = set(Reason)
    return {
        Reason(notice.reason): shorten(notice.message, MAX_NOTE)
        for notice in (report.notices if report else ())
        if notice.reason in known
    }
