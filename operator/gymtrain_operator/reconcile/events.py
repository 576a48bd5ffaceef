"""Events: what changed between two statuses, for `kubectl describe` and `kubectl get events`."""

from dataclasses import dataclass
from typing import Literal

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import Condition, GymTrainingRunStatus
from gymtrain_operator.reconcile.conditions import shorten

MAX_NOTE = 1000  # the API server takes 1024 bytes

_WARNINGS = {
    Reason.PREFLIGHT_FAILED,
    Reason.PREFLIGHT_ERROR,
    Reason.INVALID_SPEC,
    Reason.PODS_NOT_READY,
    Reason.TRANSPORT_UNAVAILABLE,
    Reason.ROLLOUTS_FAILING,
    Reason.RETRYING,
    Reason.KL_HIGH,
    Reason.RATIO_OFF,
    Reason.PARITY_OFF,
    Reason.STALLED,
    Reason.BACKOFF_LIMIT_EXCEEDED,
    Reason.TRAINER_REFUSED,
    Reason.DEADLINE_EXCEEDED,
    Reason.STARTUP_DEADLINE_EXCEEDED,
}
# Ways that a run goes through in any case are no news.
_SILENT = {
    Reason.WAITING_FOR_PREFLIGHT,
    Reason.WAITING_FOR_INFERENCE,
    Reason.WAITING_FOR_SERVERS,
    Reason.WAITING_FOR_ROLLOUTS,
    Reason.TRAINER_STARTING,
    Reason.PODS_STARTING,
    Reason.RUNNING,
    Reason.NOT_SUSPENDED,
    Reason.FINISHED,
}


@dataclass(frozen=True)
class Event:
    """One event about the run."""

    type: Literal["Normal", "Warning"]
    reason: str
    note: str


def events_between(before: GymTrainingRunStatus, after: GymTrainingRunStatus) -> tuple[Event, ...]:
    """One event for each reason that is new, in the order of the conditions. The same reason in two
    conditions is one event."""
    old = {condition.type: _news(condition) for condition in before.conditions}
    alarmed = any(c.type == ConditionType.HEALTHY and c.status == "False" for c in before.conditions)
    events: dict[str, Event] = {}
    for condition in after.conditions:
        reason = condition.reason
        if old.get(condition.type) == _news(condition) or reason in _SILENT or reason in events:
            continue
        if reason == Reason.NO_ALARM and not alarmed:
            continue  # only the end of an alarm is news
        kind: Literal["Normal", "Warning"] = "Warning" if reason in _WARNINGS else "Normal"
        events[reason] = Event(kind, reason, shorten(condition.message or reason, MAX_NOTE))
    return tuple(events.values())


def _news(condition: Condition) -> tuple[str, ...]:
    """What of a condition is news when it changes. Of the transport the message counts too: it says which, and why."""
    message = condition.message if condition.type == ConditionType.WEIGHT_SYNC_READY else ""
    return condition.status, condition.reason, message
