"""Events: news, once."""

from typing import get_args

import pytest

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.wiring import Alarm, AlarmReason, Finding
from gymtrain_operator.reconcile.conditions import false_condition, next_conditions
from gymtrain_operator.reconcile.events import MAX_NOTE, events_between
from tests.support.world import GYM_VERDICT, World


def _reasons(world: World) -> list[tuple[str, str]]:
    assert world.last is not None
    return [(event.type, event.reason) for event in world.last.events]


def test_a_run_tells_its_way() -> None:
    world = World()
    told = []
    world.reconcile()
    told += _reasons(world)
    world.preflight_ends()
    world.reconcile(5)
    told += _reasons(world)
    world.servers_ready()
    world.trainer_reports("training", 1)
    world.reconcile(5)
    told += _reasons(world)
    world.trainer_ends(0)
    world.reconcile(5)
    told += _reasons(world)
    assert told == [
        ("Normal", Reason.PREFLIGHT_RUNNING),
        ("Normal", Reason.PREFLIGHT_PASSED),
        ("Warning", Reason.PREFLIGHT_WARNED),  # nothing keeps the model
        ("Normal", Reason.ALL_READY),
        ("Normal", Reason.TRANSPORT_CHOSEN),
        ("Normal", Reason.TRAINING),
        ("Normal", Reason.TRAINING_COMPLETED),
    ]


def test_no_news_no_events() -> None:
    world = World().to_training()
    world.trainer_reports("training", 2)
    world.reconcile(5)
    assert _reasons(world) == []


def test_a_failure_is_one_warning_though_two_conditions_say_it() -> None:
    world = World()
    world.reconcile()
    world.preflight_ends(GYM_VERDICT.model_copy(update={"findings": [Finding(where="a", message="b" * 5000)]}))
    world.reconcile(5)
    assert world.last is not None
    (event,) = world.last.events
    assert (event.type, event.reason) == ("Warning", Reason.PREFLIGHT_FAILED)
    assert len(event.note) <= MAX_NOTE


# What each reason means to a reader of events: trouble is a Warning, whatever it is about.
GOOD = {
    Reason.PREFLIGHT_RUNNING,
    Reason.PREFLIGHT_PASSED,
    Reason.WAITING_FOR_PREFLIGHT,
    Reason.PODS_STARTING,
    Reason.ALL_READY,
    Reason.WAITING_FOR_INFERENCE,
    Reason.TRANSPORT_CHOSEN,
    Reason.WAITING_FOR_SERVERS,
    Reason.TRAINER_STARTING,
    Reason.WAITING_FOR_ROLLOUTS,
    Reason.TRAINING,
    Reason.FINISHED,
    Reason.NO_ALARM,
    Reason.MODEL_PUSHED,
    Reason.RESUMED_FROM_CHECKPOINT,
    Reason.SAMPLING_REPLACED,
    Reason.SUSPENDED,
    Reason.RESUMED,
    Reason.NOT_SUSPENDED,
    Reason.TRAINING_COMPLETED,
    Reason.RUNNING,
}
TROUBLE = {
    Reason.PREFLIGHT_WARNED,
    Reason.PREFLIGHT_FAILED,
    Reason.PREFLIGHT_ERROR,
    Reason.INVALID_SPEC,
    Reason.PODS_NOT_READY,
    Reason.TRANSPORT_UNAVAILABLE,
    Reason.ROLLOUTS_FAILING,
    Reason.RETRYING,
    Reason.WAITING_FOR_CAPACITY,
    Reason.KL_HIGH,
    Reason.RATIO_OFF,
    Reason.PARITY_OFF,
    Reason.STALLED,
    Reason.CHECKPOINT_FAILED,
    Reason.CHECKPOINTS_SET_ASIDE,
    Reason.RECORDS_FAILED,
    Reason.REPORTER_FAILED,
    Reason.PUSH_FAILED,
    Reason.RECORDS_INCOMPLETE,
    Reason.ENVIRONMENT_FAILING,
    Reason.NO_LEDGER_ENTRY,
    Reason.API_SERVER_ERROR,
    Reason.BACKOFF_LIMIT_EXCEEDED,
    Reason.TRAINER_REFUSED,
    Reason.DEADLINE_EXCEEDED,
    Reason.STARTUP_DEADLINE_EXCEEDED,
}


def test_no_reason_is_good_and_trouble() -> None:
    assert not GOOD & TROUBLE


@pytest.mark.parametrize("reason", sorted(GOOD | TROUBLE))
def test_trouble_and_nothing_else_is_a_warning(reason: Reason) -> None:
    conditions = [false_condition(ConditionType.PROGRESSING, reason, "words")]
    told = GymTrainingRunStatus(
        conditions=next_conditions(GymTrainingRunStatus(), conditions, 1, "2027-01-15T08:00:00Z")
    )
    types = [event.type for event in events_between(GymTrainingRunStatus(), told)]
    assert types == ["Warning"] if reason in TROUBLE else "Warning" not in types


def test_every_alarm_of_the_trainer_is_trouble() -> None:
    assert set(get_args(AlarmReason.__value__)) <= {str(reason) for reason in TROUBLE}


def test_a_checkpoint_that_could_not_be_written_is_a_warning() -> None:
    world = World().to_training(step=4)
    alarm = Alarm(reason="CheckpointFailed", message="no space left on device", since=world.now)
    world.trainer_reports("training", 5, alarms=[alarm])
    world.reconcile(2)
    assert _reasons(world) == [("Warning", Reason.CHECKPOINT_FAILED)]
