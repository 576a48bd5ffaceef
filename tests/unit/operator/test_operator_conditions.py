"""Conditions keep their time while they stay the same."""

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_operator.reconcile.conditions import (
    MAX_MESSAGE,
    false_condition,
    next_conditions,
    shorten,
    true_condition,
)

KIND = ConditionType.GYM_READY
EARLY, LATE = "2027-01-01T00:00:00Z", "2027-01-01T01:00:00Z"


def _before() -> GymTrainingRunStatus:
    conditions = [false_condition(KIND, Reason.PODS_STARTING, "0 of 2")]
    return GymTrainingRunStatus(conditions=next_conditions(GymTrainingRunStatus(), conditions, 1, EARLY))


def test_the_time_stays_while_the_status_stays() -> None:
    (condition,) = next_conditions(_before(), [false_condition(KIND, Reason.PODS_NOT_READY, "1 of 2")], 2, LATE)
    assert condition.last_transition_time == EARLY
    assert (condition.reason, condition.message, condition.observed_generation) == ("PodsNotReady", "1 of 2", 2)


def test_the_time_moves_with_the_status() -> None:
    (condition,) = next_conditions(_before(), [true_condition(KIND, Reason.ALL_READY)], 1, LATE)
    assert condition.last_transition_time == LATE


def test_of_two_claims_about_one_condition_the_last_counts() -> None:
    (condition,) = next_conditions(
        _before(), [true_condition(KIND, Reason.ALL_READY), false_condition(KIND, Reason.FINISHED)], 1, LATE
    )
    assert condition.reason == Reason.FINISHED


def test_conditions_stand_in_a_fixed_order() -> None:
    conditions = [true_condition(kind, Reason.RUNNING) for kind in reversed(ConditionType)]
    assert [c.type for c in next_conditions(_before(), conditions, 1, LATE)] == list(ConditionType)


def test_long_messages_keep_both_ends() -> None:
    text = shorten("cause " + "x" * 9000 + " last line")
    assert len(text) == MAX_MESSAGE
    assert text.startswith("cause ")
    assert text.endswith(" last line")
