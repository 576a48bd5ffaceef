"""Healthy: the trainer's alarms, as condition and as events."""

from typing import Any

import pytest

from gymtrain_api.conditions import ConditionType, Reason
from tests.support.world import START, World


def _alarm(reason: str, message: str) -> dict[str, Any]:
    return {"reason": reason, "message": message, "since": START}


def _events(world: World) -> list[tuple[str, str]]:
    assert world.last is not None
    return [(event.type, event.reason) for event in world.last.events]


def test_before_the_first_step_nothing_is_known() -> None:
    world = World().to_servers()
    assert world.condition(ConditionType.HEALTHY).status == "Unknown"


def test_a_trainer_without_alarms_is_healthy_and_that_is_no_event() -> None:
    world = World().to_servers()
    world.servers_ready()
    world.trainer_reports("training", 1)
    world.reconcile(5)
    healthy = world.condition(ConditionType.HEALTHY)
    assert (healthy.status, healthy.reason) == ("True", Reason.NO_ALARM)
    assert ("Normal", Reason.NO_ALARM) not in _events(world)


def test_an_alarm_gives_its_reason_and_all_messages() -> None:
    world = World().to_training()
    alarms = [_alarm("KLHigh", "KL 0.9, limit 0.2"), _alarm("Stalled", "no step for 300 s")]
    world.trainer_reports("training", 2, alarms=alarms)
    world.reconcile(5)
    healthy = world.condition(ConditionType.HEALTHY)
    assert (healthy.status, healthy.reason) == ("False", Reason.KL_HIGH)
    assert healthy.message == "KL 0.9, limit 0.2; no step for 300 s"
    assert _events(world) == [("Warning", Reason.KL_HIGH)]
    assert world.status.state == "Training", "an alarm stops nothing"


def test_the_end_of_an_alarm_is_an_event() -> None:
    world = World().to_training()
    world.trainer_reports("training", 2, alarms=[_alarm("Stalled", "no step for 300 s")])
    world.reconcile(5)
    world.trainer_reports("training", 3)
    world.reconcile(5)
    assert _events(world) == [("Normal", Reason.NO_ALARM)]


def test_an_alarm_stands_while_the_trainer_is_silent() -> None:
    world = World().to_training()
    world.trainer_reports("training", 2, alarms=[_alarm("ParityOff", "0.09, limit 0.1")])
    world.reconcile(5)
    del world.seen["progress"]
    world.reconcile(5)
    assert world.condition(ConditionType.HEALTHY).reason == Reason.PARITY_OFF


def test_a_new_attempt_has_measured_nothing() -> None:
    world = World().to_training()
    world.trainer_reports("training", 2, alarms=[_alarm("RatioOff", "1.4")])
    world.reconcile(5)
    world.trainer_ends(1)
    world.reconcile(11)
    assert world.condition(ConditionType.HEALTHY).reason == Reason.RATIO_OFF, "until the next one says something"
    world.trainer_reports("starting")
    world.reconcile(5)
    assert world.condition(ConditionType.HEALTHY).status == "Unknown"


def test_parity_stands_in_the_progress() -> None:
    world = World().to_training()
    world.trainer_reports("training", 2, parity=0.00123456)
    world.reconcile(15)
    assert world.status.progress is not None
    assert world.status.progress.parity == "0.00123"


@pytest.mark.parametrize("reason", [Reason.ENVIRONMENT_FAILING, Reason.NO_LEDGER_ENTRY])
def test_lost_rollouts_are_named_and_are_a_warning(reason: Reason) -> None:
    world = World().to_training()
    world.trainer_reports("training", 2, alarms=[_alarm(reason, "agent sums: gone")])
    world.reconcile(5)
    healthy = world.condition(ConditionType.HEALTHY)
    assert (healthy.status, healthy.reason, healthy.message) == ("False", reason, "agent sums: gone")
    assert _events(world) == [("Warning", reason)]


def test_an_environment_that_never_works_hides_no_other_alarm() -> None:
    world = World().to_training()
    alarms = [_alarm("EnvironmentFailing", "agent sums: gone")]
    world.trainer_reports("training", 2, alarms=alarms)
    world.reconcile(5)
    world.trainer_reports("training", 3, alarms=[*alarms, _alarm("KLHigh", "KL 0.9")])
    world.reconcile(5)
    healthy = world.condition(ConditionType.HEALTHY)
    assert (healthy.reason, healthy.message) == (Reason.KL_HIGH, "KL 0.9; agent sums: gone")
    assert _events(world) == [("Warning", Reason.KL_HIGH)]
