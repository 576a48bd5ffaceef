"""Conditions keep their time while they stay the same."""

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_operator.reconcile.conditions import MAX_MESSAGE, holds, lacks, settle, shorten

KIND = ConditionType.GYM_READY
EARLY, LATE = "2027-01-01T00:00:00Z", "2027-01-01T01:00:00Z"


def _before() -> GymTrainingRunStatus:
    claims = [lacks(KIND, Reason.PODS_STARTING, "0 of 2")]
    return GymTrainingRunStatus(conditions=settle(GymTrainingRunStatus(), claims, 1, EARLY))


def test_the_time_stays_while_the_status_stays() -> None:
    (condition,) = settle(_before(), [lacks(KIND, Reason.PODS_NOT_READY, "1 of 2")], 2, LATE)
    assert condition.last_transition_time == EARLY
    assert (condition.reason, condition.message, condition.observed_generation) == ("PodsNotReady", "1 of 2", 2)


def test_the_time_moves_with_the_status() -> None:
    (condition,) = settle(_before(), [holds(KIND, Reason.ALL_READY)], 1, LATE)
    assert condition.last_transition_time == LATE


def test_of_two_claims_about_one_condition_the_last_counts() -> None:
    (condition,) = settle(_before(), [holds(KIND, Reason.ALL_READY), lacks(KIND, Reason.FINISHED)], 1, LATE)
    assert condition.reason == Reason.FINISHED


def test_conditions_stand_in_a_fixed_order() -> None:
    claims = [holds(kind, Reason.RUNNING) for kind in reversed(ConditionType)]
    assert [c.type for c in settle(_before(), claims, 1, LATE)] == list(ConditionType)


def test_long_messages_keep_both_ends() -> None:
    text = shorten("cause " + "x" * 9000 + " last line")
    assert len(text) == MAX_MESSAGE
    assert text.startswith("cause ")
    assert text.endswith(" last line")
