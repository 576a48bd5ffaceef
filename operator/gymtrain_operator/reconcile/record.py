"""The record of a run, an annotation: for runs that come with it and without a status, as they do when they are
restored from a backup, or exported and applied again."""

from gymtrain_api.condition_table import CONDITIONS
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.labels import RECORD
from gymtrain_api.record import MAX_MESSAGE, Ended, Record
from gymtrain_api.status import MAX_DISRUPTED_ATTEMPTS, GymTrainingRunStatus
from gymtrain_api.times import to_text
from gymtrain_operator.reconcile.conditions import (
    StatedCondition,
    false_condition,
    next_conditions,
    shorten,
    true_condition,
)
from gymtrain_operator.reconcile.lifecycle import ENDS
from gymtrain_operator.reconcile.observation import Run
from gymtrain_operator.reconcile.status import state_of


def status_from_record(run: Run, before: GymTrainingRunStatus, now: float) -> GymTrainingRunStatus:
    """Returns the status to continue from; if there is none, the one from the record."""
    record = run.record
    if record is None or run.status.conditions:
        return before
    if record.ended is None:
        # Whatever took the object away ended its attempt, too.
        lost = (record.attempt,) if record.attempt and record.attempt not in record.disrupted else ()
        disrupted = [*record.disrupted, *lost][:MAX_DISRUPTED_ATTEMPTS]
        return before.model_copy(update={"disrupted_attempts": disrupted})
    conditions = next_conditions(before, _end_conditions(record.ended), run.generation, to_text(now))
    return GymTrainingRunStatus(
        observed_generation=run.generation,
        state=state_of(conditions),
        attempt=record.attempt,
        completion_time=record.ended.time,
        disrupted_attempts=list(record.disrupted),
        conditions=conditions,
    )


def updated_record(run: Run, status: GymTrainingRunStatus) -> str | None:
    """Returns the annotation's new value, by the status that the run is to have: empty where it has to go, None where
    it is right as it is."""
    old, wanted = run.record, _record(run, status)
    if wanted == old:
        return None
    return wanted.model_dump_json(exclude_none=True) if wanted else ""


def _record(run: Run, status: GymTrainingRunStatus) -> Record | None:
    old = run.record
    attempt = status.attempt or (old.attempt if old else None)
    ended = _ended(status)
    if attempt is None and ended is None:
        return None
    return Record(
        run=run.name,
        uid=old.uid if old else run.uid,
        attempt=attempt,
        disrupted=tuple(status.disrupted_attempts),
        trained=(old is not None and old.trained) or (status.progress is not None and status.progress.step > 0),
        ended=(old.ended if old else None) or ended if ended else None,
    )


def _ended(status: GymTrainingRunStatus) -> Ended | None:
    for kind in ENDS:
        found = status.condition(kind)
        if found is not None and found.status == "True":
            time = status.completion_time or found.last_transition_time
            message = shorten(found.message, MAX_MESSAGE)
            return Ended.model_validate(
                {"condition": kind.value, "reason": found.reason, "message": message, "time": time}
            )
    return None


def _end_conditions(ended: Ended) -> list[StatedCondition]:
    try:
        reason = Reason(ended.reason)
    except ValueError:  # of a later release
        reason = Reason.FINISHED
    words = ended.message.rstrip(".") or f"it ended at {ended.time}"
    text = (
        f"{words}, says annotation {RECORD}, with which this object was made, as a restored backup is: nothing is "
        f"trained again. To train it again, delete the run and apply it without annotation {RECORD}"
    )
    return [
        false_condition(ConditionType.PROGRESSING, Reason.FINISHED, "the run has ended"),
        *(StatedCondition.of_table(kind, other) for kind in ENDS if (other := CONDITIONS[kind].waits)),
        # Said last, so it counts where the table says something of the same condition.
        true_condition(ConditionType(ended.condition), reason, text),
    ]
