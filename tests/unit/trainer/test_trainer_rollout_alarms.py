"""When lost rollouts become an alarm, and when it goes off again."""

import pytest

from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import DropReason, FailureKind, GroupDroppedError
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts import alarms as alarms_module
from gymtrain_trainer.rollouts.alarms import Environments, KnownCalls
from gymtrain_trainer.rollouts.group import Lost
from gymtrain_trainer.rollouts.report import RolloutReport
from gymtrain_trainer.rollouts.source import Sampling


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def failed(environments: Environments, agent: str, times: int, clock: Clock, seconds: float = 40.0) -> None:
    for _ in range(times):
        environments.failed(agent, "math: KeyError('a')")
        clock.now += seconds


def test_an_agent_whose_groups_all_fail_is_named_with_its_error_and_since_when() -> None:
    clock = Clock()
    environments = Environments(clock)
    failed(environments, "sums", 3, clock)
    assert environments.message() == (
        "every rollout group of agent sums has failed since 1970-01-01T00:00:00Z: math: KeyError('a')"
    )


@pytest.mark.parametrize(("times", "seconds"), [(2, 1000.0), (50, 1.0)])
def test_a_few_failures_and_a_pod_that_is_replaced_are_no_alarm(times: int, seconds: float) -> None:
    clock = Clock()
    environments = Environments(clock)
    failed(environments, "sums", times, clock, seconds)
    assert environments.message() is None


def test_one_group_that_ends_clears_the_alarm_of_its_agent_alone() -> None:
    clock = Clock()
    environments = Environments(clock)
    failed(environments, "sums", 3, clock)
    failed(environments, "mails", 3, clock)
    environments.worked("sums")
    assert str(environments.message()).startswith("every rollout group of agent mails")
    environments.worked("mails")
    assert environments.message() is None


def test_many_failing_agents_make_no_endless_message() -> None:
    clock = Clock()
    environments = Environments(clock)
    for number in range(20):
        failed(environments, f"agent-{number:02}", 3, clock)
    message = str(environments.message())
    assert message.endswith("; and 17 more agents")
    assert message.count("every rollout group") == 3


def test_rows_that_were_given_up_are_counted_until_calls_are_known_again() -> None:
    calls = KnownCalls()
    assert calls.message() is None
    calls.given_up("set spec.gateway.replicas")
    calls.given_up("set spec.gateway.replicas")
    assert str(calls.message()).endswith("model calls: 2. set spec.gateway.replicas")
    for _ in range(15):
        calls.group(known=True)
    calls.group(known=False)
    for _ in range(15):
        calls.group(known=True)
    assert calls.message() is not None
    calls.group(known=True)
    assert calls.message() is None


def drop(report: RolloutReport, agent: str, reason: DropReason) -> None:
    report.group_dropped(Task(0, agent, "", {}), GroupDroppedError(reason, "why"))


def test_the_board_shows_the_agent_that_fails_and_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms_module, "_SECONDS", 0.0)
    board = ProgressBoard()
    report = RolloutReport(board, Sampling(0.8, 16), masks_truncated=False)
    for _ in range(3):
        drop(report, "sums", DropReason.FAILED)
    drop(report, "mails", DropReason.FAILED)
    (alarm,) = board.snapshot().alarms
    assert (alarm.reason, "agent sums" in alarm.message, "mails" in alarm.message) == (
        "EnvironmentFailing",
        True,
        False,
    )
    assert board.tallies("failed_groups") == {"sums": 3, "mails": 1}
    report.rollout_lost("sums", Lost(FailureKind.ENVIRONMENT, "why", zeroed=False))
    assert len(board.snapshot().alarms) == 1, "only whole groups raise and clear it"
    drop(report, "sums", DropReason.STALE)  # too late, but its rollouts work
    assert board.snapshot().alarms == []
