"""What a person reads while a run goes on."""

import pytest

from gymtrain_api.status import Condition, GymTrainingRunStatus, Progress, ServerStatus, WeightSyncStatus
from gymtrain_cli.watch import describe, follow
from gymtrain_client.errors import WatchDeadlineError


def _condition(kind: str, status: str, message: str = "") -> Condition:
    return Condition(type=kind, status=status, reason="R", message=message, last_transition_time="2026-01-01T00:00:00Z")


def _server(name: str, ready: str) -> ServerStatus:
    return ServerStatus(name=name, kind="agent", url="http://x", ready=ready)


TRAINING = GymTrainingRunStatus(
    state="Training",
    progress=Progress(step=3, max_steps=10, reward="0.250", tokens_per_second="88"),
    weight_sync=WeightSyncStatus(transport="HTTPFull", version="r:1:3"),
    conditions=[_condition("Progressing", "True", "training")],
)
COMPLETE = TRAINING.model_copy(
    update={"state": "Complete", "conditions": [_condition("Complete", "True", "10 steps done")]}
)
FAILED = TRAINING.model_copy(update={"state": "Failed", "conditions": [_condition("Failed", "True", "disk full")]})


def test_a_run_without_status_waits_for_the_operator() -> None:
    assert "waiting for the operator" in describe(GymTrainingRunStatus())


def test_before_the_first_step_it_says_what_it_waits_for_and_how_many_servers_are_ready() -> None:
    line = describe(
        GymTrainingRunStatus(
            state="Starting",
            servers=[_server("a", "1/1"), _server("b", "0/2")],
            conditions=[_condition("Progressing", "True", "waiting for b")],
        )
    )
    assert "servers 1/2 ready" in line
    assert "waiting for b" in line


def test_while_training_it_shows_step_reward_speed_and_weights() -> None:
    line = describe(TRAINING)
    for part in ("step 3/10", "reward 0.250", "88 tokens/s", "weights r:1:3"):
        assert part in line


def test_a_halt_during_training_says_why() -> None:
    halted = TRAINING.model_copy(update={"conditions": [_condition("Progressing", "False", "rollouts fail: HTTP 500")]})
    assert "rollouts fail: HTTP 500" in describe(halted)


def test_an_alarm_stands_beside_the_step() -> None:
    alarm = _condition("Healthy", "False", "KL 0.9, limit 0.2").model_copy(update={"reason": "KLHigh"})
    line = describe(TRAINING.model_copy(update={"conditions": [*TRAINING.conditions, alarm]}))
    assert "step 3/10" in line
    assert line.endswith("KLHigh: KL 0.9, limit 0.2")


def test_no_alarm_is_not_worth_a_word() -> None:
    fine = _condition("Healthy", "True", "").model_copy(update={"reason": "NoAlarm"})
    assert "NoAlarm" not in describe(TRAINING.model_copy(update={"conditions": [*TRAINING.conditions, fine]}))


def test_the_end_shows_its_message() -> None:
    assert "10 steps done" in describe(COMPLETE)
    assert "disk full" in describe(FAILED)


@pytest.mark.parametrize(("end", "expected"), [(COMPLETE, True), (FAILED, False)])
def test_following_returns_how_the_run_ended(end: GymTrainingRunStatus, expected: bool) -> None:
    states = iter([TRAINING, TRAINING, end])
    lines: list[str] = []
    assert follow(lambda: next(states), lines.append, 60, clock=lambda: 0.0, sleep=lambda _: None) is expected
    assert len(lines) == 2, "an unchanged state is written once"


def test_following_ends_at_its_deadline() -> None:
    ticks = iter(range(100))
    with pytest.raises(WatchDeadlineError, match="did not end within 5 s"):
        follow(lambda: TRAINING, lambda _: None, 5, clock=lambda: next(ticks), sleep=lambda _: None)
