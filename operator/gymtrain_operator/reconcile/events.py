"""Events: what changed between two statuses, for `kubectl describe` and `kubectl get events`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import Condition, GymTrainingRunStatus
from gymtrain_operator.reconcile.conditions import shorten
from gymtrain_operator.reconcile.preflight_warnings import split_message

MAX_NOTE = 1000  # the API server takes 1024 bytes

type EventType = Literal["Normal", "Warning"]

# What each reason posts when it is new; None where a run goes that way in any case, which is no news.
POSTED: Mapping[str, EventType | None] = {
    Reason.PREFLIGHT_RUNNING: "Normal",
    Reason.PREFLIGHT_PASSED: "Normal",
    Reason.PREFLIGHT_WARNED: "Warning",
    Reason.PREFLIGHT_FAILED: "Warning",
    Reason.PREFLIGHT_ERROR: "Warning",
    Reason.INVALID_SPEC: "Warning",
    Reason.WAITING_FOR_PREFLIGHT: None,
    Reason.PODS_STARTING: None,
    Reason.ALL_READY: "Normal",
    Reason.PODS_NOT_READY: "Warning",
    Reason.WAITING_FOR_INFERENCE: None,
    Reason.TRANSPORT_CHOSEN: "Normal",
    Reason.TRANSPORT_UNAVAILABLE: "Warning",
    Reason.WAITING_FOR_SERVERS: None,
    Reason.TRAINER_STARTING: None,
    Reason.WAITING_FOR_ROLLOUTS: None,
    Reason.TRAINING: "Normal",
    Reason.API_SERVER_ERROR: "Warning",
    Reason.ROLLOUTS_FAILING: "Warning",
    Reason.RETRYING: "Warning",
    Reason.WAITING_FOR_CAPACITY: "Warning",
    Reason.FINISHED: None,
    Reason.NO_ALARM: "Normal",
    Reason.KL_HIGH: "Warning",
    Reason.RATIO_OFF: "Warning",
    Reason.PARITY_OFF: "Warning",
    Reason.STALLED: "Warning",
    Reason.CHECKPOINT_FAILED: "Warning",
    Reason.ENVIRONMENT_FAILING: "Warning",
    Reason.NO_LEDGER_ENTRY: "Warning",
    Reason.CHECKPOINTS_SET_ASIDE: "Warning",
    Reason.RESUMED_FROM_CHECKPOINT: "Normal",
    Reason.SAMPLING_REPLACED: "Normal",
    Reason.SUSPENDED: "Normal",
    Reason.RESUMED: "Normal",
    Reason.NOT_SUSPENDED: None,
    Reason.TRAINING_COMPLETED: "Normal",
    Reason.RUNNING: None,
    Reason.BACKOFF_LIMIT_EXCEEDED: "Warning",
    Reason.TRAINER_REFUSED: "Warning",
    Reason.DEADLINE_EXCEEDED: "Warning",
    Reason.STARTUP_DEADLINE_EXCEEDED: "Warning",
}


@dataclass(frozen=True)
class Event:
    """One event about the run."""

    type: EventType
    reason: str
    note: str


def events_between(before: GymTrainingRunStatus, after: GymTrainingRunStatus) -> tuple[Event, ...]:
    """One event for each reason that is new, in the order of the conditions. The same reason in two
    conditions is one event, and preflight's warnings are an event beside the one that it passed."""
    old = {condition.type: _news(condition) for condition in before.conditions}
    alarmed = any(c.type == ConditionType.HEALTHY and c.status == "False" for c in before.conditions)
    events: dict[str, Event] = {}
    for condition in after.conditions:
        reason = condition.reason
        kind = POSTED.get(reason, "Normal")  # one of another release is in a status that can't be read yet
        if kind is None or old.get(condition.type) == _news(condition) or reason in events:
            continue
        if reason == Reason.NO_ALARM and not alarmed:
            continue  # only the end of an alarm is news
        note, warnings = condition.message, ""
        if reason == Reason.PREFLIGHT_PASSED:
            note, warnings = split_message(note)
        events[reason] = Event(kind, reason, shorten(note or reason, MAX_NOTE))
        if warnings:
            events[Reason.PREFLIGHT_WARNED] = Event("Warning", Reason.PREFLIGHT_WARNED, shorten(warnings, MAX_NOTE))
    return tuple(events.values())


def _news(condition: Condition) -> tuple[str, ...]:
    """What of a condition is news when it changes. Of the transport the message counts too: it says which, and why."""
    message = condition.message if condition.type == ConditionType.WEIGHT_SYNC_READY else ""
    return condition.status, condition.reason, message
