"""Events: what changed between two statuses, for `kubectl describe` and `kubectl get events`."""

from dataclasses import dataclass

from gymtrain_api.condition_table import EventType, reason_row
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import Condition, GymTrainingRunStatus
from gymtrain_operator.reconcile.conditions import shorten
from gymtrain_operator.reconcile.preflight import split_message

MAX_NOTE = 1000  # the API server takes 1024 bytes


@dataclass(frozen=True)
class Event:
    """One event about the run.

    Attributes:
        about: type of the condition that it comes from; empty for what no condition says.
    """

    type: EventType
    reason: str
    note: str
    about: str = ""


def events_between(before: GymTrainingRunStatus, after: GymTrainingRunStatus) -> tuple[Event, ...]:
    """Returns an event for each reason that is new, in the order of the conditions. The same reason in two
    conditions is one event, and preflight's warnings are an event beside the one that it passed."""
    old = {condition.type: _identity(condition) for condition in before.conditions}
    alarmed = any(c.type == ConditionType.HEALTHY and c.status == "False" for c in before.conditions)
    events: dict[str, Event] = {}
    for condition in after.conditions:
        reason = condition.reason
        kind = reason_row(reason).event
        if kind is None or old.get(condition.type) == _identity(condition) or reason in events:
            continue
        if reason == Reason.NO_ALARM and not alarmed:
            continue  # only the end of an alarm is news
        note, warnings = condition.message, ""
        if reason == Reason.PREFLIGHT_PASSED:
            note, warnings = split_message(note)
        events[reason] = Event(kind, reason, shorten(note or reason, MAX_NOTE), condition.type)
        if warnings:
            events[Reason.PREFLIGHT_WARNED] = Event("Warning", Reason.PREFLIGHT_WARNED, shorten(warnings, MAX_NOTE))
    return tuple(events.values())


def _identity(condition: Condition) -> tuple[str, ...]:
    """Returns what of a condition makes an event when it changes. Of the transport the message counts too: it says
    which, and why."""
    message = condition.message if condition.type == ConditionType.WEIGHT_SYNC_READY else ""
    return condition.status, condition.reason, message
