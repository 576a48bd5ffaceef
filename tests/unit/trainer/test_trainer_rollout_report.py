"""What the rollout worker tells of its groups."""

from typing import Any

import pytest

from gymtrain_api.conditions import Reason
from gymtrain_api.wiring import LostRollouts
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import FailureKind
from gymtrain_trainer.progress import Loss, ProgressBoard
from gymtrain_trainer.rollouts.answer import Answer, Turn
from gymtrain_trainer.rollouts.group import Group, Lost
from gymtrain_trainer.rollouts.origins import Origin, Rollout
from gymtrain_trainer.rollouts.report import RolloutReport
from gymtrain_trainer.rollouts.source import Sampling
from gymtrain_trainer.rollouts.summary import RolloutSummary
from tests.unit.trainer.trainer_data import group as sample_group

ANSWER = Answer([Turn.of([1], [2], [-0.5])], 1.0, "text", truncated=False)


def group(params: dict[str, Any], *origins: Origin) -> tuple[Task, Group]:
    task = Task(0, "adder", "http://agent", {"responses_create_params": {"input": "q", **params}})
    samples = sample_group(0, rewards=[1.0] * len(origins))
    rollouts = [RolloutSummary.of(Rollout(ANSWER, (1,), (origin,))) for origin in origins]
    return task, Group(tuple(rollouts), samples, 1.0)


def origin(**more: Any) -> Origin:
    return Origin((1,), continues=True, forked=False, **more)


@pytest.fixture
def board() -> ProgressBoard:
    return ProgressBoard()


@pytest.fixture
def report(board: ProgressBoard) -> RolloutReport:
    return RolloutReport(board, Sampling(0.8, 16), masks_truncated=False)


@pytest.mark.parametrize("params", [{}, {"temperature": None, "top_p": None}, {"temperature": 0.8, "top_p": 1}])
def test_rows_that_ask_for_the_runs_sampling_or_none_are_no_news(
    params: dict[str, Any], board: ProgressBoard, report: RolloutReport
) -> None:
    report.group_usable(*group(params, origin()))
    assert board.tallies("replaced_sampling") == {}
    assert board.snapshot().notices == []


def test_sampling_that_rows_and_agents_did_not_get_is_counted_and_told_once(
    board: ProgressBoard, report: RolloutReport, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        report.group_usable(*group({"temperature": 0.7}, origin(), origin(replaced=("top_k",))))
    assert board.tallies("replaced_sampling") == {"temperature": 6, "top_k": 3}
    (notice,) = board.snapshot().notices
    assert notice.reason == Reason.SAMPLING_REPLACED
    assert "ask for another temperature, top_k than the run's" in notice.message
    assert "temperature 0.8 over the whole vocabulary" in notice.message
    assert [record.getMessage() for record in caplog.records].count(notice.message) == 1


def test_turns_that_a_grammar_held_are_counted(board: ProgressBoard, report: RolloutReport) -> None:
    report.group_usable(*group({}, origin(constrained=True), origin(), origin(constrained=True)))
    assert sum(board.tallies("constrained_turns").values()) == 2


def lose(report: RolloutReport, agent: str, kind: FailureKind, times: int, *, zeroed: bool = False) -> None:
    for _ in range(times):
        report.rollout_lost(agent, Lost(kind, "why", zeroed))


def test_lost_rollouts_are_counted_by_environment_and_kind_and_what_became_of_them(
    board: ProgressBoard, report: RolloutReport
) -> None:
    lose(report, "sums", FailureKind.TIMEOUT, 2)
    lose(report, "sums", FailureKind.TIMEOUT, 3, zeroed=True)
    lose(report, "mails", FailureKind.INFRASTRUCTURE, 1)
    assert board.lost() == {
        Loss("sums", "timeout", zeroed=False): 2,
        Loss("sums", "timeout", zeroed=True): 3,
        Loss("mails", "infrastructure", zeroed=False): 1,
    }
    assert board.snapshot().lost_rollouts == [
        LostRollouts(environment="sums", kind="timeout", rollouts=5),
        LostRollouts(environment="mails", kind="infrastructure", rollouts=1),
    ]


def test_the_progress_has_those_with_the_most(board: ProgressBoard, report: RolloutReport) -> None:
    for number in range(30):
        lose(report, f"agent-{number:02}", FailureKind.ENVIRONMENT, number + 1)
    told = board.snapshot().lost_rollouts
    assert [one.rollouts for one in told] == list(range(30, 10, -1))
    assert len(board.lost()) == 30


def test_a_group_that_goes_on_without_a_rollout_counts_those_that_are_left(
    board: ProgressBoard, report: RolloutReport
) -> None:
    lose(report, "adder", FailureKind.TIMEOUT, 1)
    report.group_usable(*group({}, origin(), origin()))
    assert (board.snapshot().rollouts, board.snapshot().dropped_groups) == (2, 0)
