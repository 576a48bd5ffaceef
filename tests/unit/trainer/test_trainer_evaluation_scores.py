"""What an evaluation comes to: means over tasks, intervals, pass@k, failures."""

import itertools
import math
import statistics
from pathlib import Path

import pytest

from gymtrain_trainer.monitoring.evaluation_scores import (
    ALL,
    EvaluationRow,
    EvaluationsFile,
    evaluation_rows,
    pass_at,
)
from gymtrain_trainer.rollouts.evaluate import Evaluated
from gymtrain_trainer.rollouts.evaluation import EvaluationEnd, TaskEnds


def ended(*rewards: float | None, tokens: int = 10) -> tuple[Evaluated, ...]:
    return tuple(
        Evaluated(reward, tokens=tokens) if reward is not None else Evaluated(failure="timeout") for reward in rewards
    )


def rows(*tasks: TaskEnds, samples: int = 2, pass_reward: float = 1.0) -> list[EvaluationRow]:
    return evaluation_rows(
        EvaluationEnd(tasks, 2.5), step=4, version="run:1:5", samples=samples, pass_reward=pass_reward, now=100.0
    )


@pytest.mark.parametrize("n", [1, 3, 5])
def test_pass_at_k_is_the_chance_over_all_choices_of_k_rollouts(n: int) -> None:
    for passed, k in itertools.product(range(n + 1), range(1, n + 1)):
        outcomes = [True] * passed + [False] * (n - passed)
        every = [any(chosen) for chosen in itertools.combinations(outcomes, k)]
        assert pass_at(k, n, passed) == pytest.approx(sum(every) / len(every))


def test_a_task_counts_once_however_many_of_its_rollouts_are_scored() -> None:
    (total, _) = rows(TaskEnds("math", ended(1.0, 1.0)), TaskEnds("math", ended(0.0, None)))
    assert (total.reward, total.tasks, total.rollouts, total.failed) == (0.5, 2, 3, 1)


def test_the_interval_is_that_of_the_mean_over_tasks() -> None:
    means = [0.0, 0.5, 1.0, 1.0]
    tasks = [TaskEnds("math", ended(mean, mean)) for mean in means]
    total = rows(*tasks)[0]
    half = 1.959964 * statistics.stdev(means) / math.sqrt(4)
    assert total.reward_low == pytest.approx(statistics.fmean(means) - half, abs=1e-6)
    assert total.reward_high == pytest.approx(statistics.fmean(means) + half, abs=1e-6)
    alone = rows(tasks[0])[0]
    assert (alone.reward_low, alone.reward_high) == (None, None)


@pytest.mark.parametrize(
    ("passed", "low", "high"),
    [(0, 0.0, 0.0566), (1, 0.0028, 0.0833), (62, 0.8930, 0.9914), (64, 0.9434, 1.0)],  # of statsmodels, "wilson"
)
def test_where_tasks_pass_or_fail_the_interval_stays_between_them_and_has_a_width(
    passed: int, low: float, high: float
) -> None:
    tasks = [TaskEnds("math", ended(float(number < passed))) for number in range(64)]
    total = rows(*tasks, samples=1)[0]
    assert total.reward_low == pytest.approx(low, abs=1e-4)
    assert total.reward_high == pytest.approx(high, abs=1e-4)


def test_environments_have_rows_of_their_own() -> None:
    total, math_row, tools = rows(
        TaskEnds("tools", ended(0.0, 0.0, tokens=30)), TaskEnds("math", ended(1.0, 0.5, tokens=10))
    )
    assert [total.environment, math_row.environment, tools.environment] == [ALL, "math", "tools"]
    assert (total.reward, math_row.reward, tools.reward) == (0.375, 0.75, 0.0)
    assert (math_row.pass_1, math_row.pass_k, math_row.k) == (0.5, 1.0, 2)
    assert (total.tokens, math_row.tokens) == (20.0, 10.0)
    assert (total.step, total.version, total.seconds, total.time) == (4, "run:1:5", 2.5, 100.0)


def test_a_task_with_fewer_scored_rollouts_than_k_is_not_in_pass_at_k() -> None:
    total = rows(TaskEnds("math", ended(1.0, None)), TaskEnds("math", ended(0.0, 0.0)))[0]
    assert (total.pass_1, total.pass_k) == (0.5, 0.0)


def test_the_pass_reward_is_the_runs() -> None:
    total = rows(TaskEnds("math", ended(0.6, 0.4)), pass_reward=0.5)[0]
    assert (total.pass_1, total.pass_k) == (0.5, 1.0)


def test_failures_are_told_by_kind_and_those_that_count_as_zero_apart() -> None:
    zeroed = Evaluated(reward=0.0, zeroed=True, failure="environment")
    total = rows(TaskEnds("math", (zeroed, Evaluated(failure="deadline"))), TaskEnds("math", ended(None, 1.0)))[0]
    assert (total.failed, total.zeroed, total.failures) == (3, 1, "deadline 1, environment 1, timeout 1")
    assert (total.reward, total.rollouts) == (0.5, 2)


def test_nothing_scored_is_no_score() -> None:
    total = rows(TaskEnds("math", ended(None, None)))[0]
    assert (total.reward, total.pass_1, total.pass_k, total.tokens, total.truncated) == (None,) * 5
    assert (total.tasks, total.failed) == (0, 2)
    assert not total.counts


def test_a_score_of_which_much_failed_is_never_the_best() -> None:
    nine = [TaskEnds("math", ended(1.0))] * 9
    assert rows(*nine, TaskEnds("math", ended(None)), samples=1)[0].counts
    assert not rows(*nine[1:], *[TaskEnds("math", ended(None))] * 2, samples=1)[0].counts


def test_truncated_rollouts_are_a_share_of_those_with_tokens() -> None:
    tasks = TaskEnds("math", (Evaluated(1.0, tokens=5, truncated=True), *ended(0.0)))
    assert rows(tasks)[0].truncated == 0.5


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = [
        *rows(TaskEnds("math", ended(1.0, 0.5)), TaskEnds("math", ended(0.0, None))),
        *rows(TaskEnds("math", ended(None))),
    ]
    file = EvaluationsFile(tmp_path / "evaluations.csv")
    file.begin(0)
    file.append(*written)
    assert file.rows() == written
    file.begin(3)
    assert file.rows() == [], "they are of step 4"
