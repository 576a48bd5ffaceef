"""What a rejection by the API server means for the run: its end, or a wait that the status tells of."""

from gymtrain_api import names
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.times import to_text
from gymtrain_operator.reconcile.capacity import has_trained
from gymtrain_operator.reconcile.changes import Failure
from gymtrain_operator.reconcile.conditions import StatedCondition, false_condition
from gymtrain_operator.reconcile.observation import Observation, Rejection


def fatal_rejection(seen: Observation, before: GymTrainingRunStatus) -> Failure | None:
    """Returns the end of a run whose first attempt has an object that is invalid: nothing is lost yet.

    A run that has trained waits instead, for a corrected template or another API server: what it has learnt is
    worth more than an early answer.
    """
    first = names.trainer_job(seen.run.name, 1)
    trained = (before.attempt or 1) > 1 or has_trained(seen, before)
    for rejection in seen.rejections:
        later_attempt = rejection.kind == "Job" and rejection.name != first
        if rejection.final and not trained and not later_attempt:
            text = f"the API server refuses {rejection.kind} {rejection.name}: {rejection.message}"
            return Failure(Reason.INVALID_SPEC, text)
    return None


def waiting_condition(rejections: tuple[Rejection, ...]) -> StatedCondition | None:
    """States what the run waits for while something of it is rejected; None if nothing is."""
    if not rejections:
        return None
    rejection = rejections[0]
    text = f"the API server refuses {rejection.kind} {rejection.name} for now, retrying: {rejection.message}"
    return false_condition(ConditionType.PROGRESSING, Reason.PODS_NOT_READY, text)


def unanswered_condition(error: str, since: float) -> StatedCondition:
    """States what the run waits for while the API server gives no usable answer."""
    text = f"since {to_text(since)} API server errors hold up this run, retrying: {error}"
    return false_condition(ConditionType.PROGRESSING, Reason.API_SERVER_ERROR, text)
