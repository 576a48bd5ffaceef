"""What an evaluation says of a weight version: rows of evaluations.csv, one an environment and one of all. Pure.

The unit is the task: rollouts of one task are alike, so more of them are not as many independent observations. Each
task counts once, with the mean of its scored rollouts; the interval is that of the mean over tasks, by the normal
approximation (Miller 2024, arXiv 2411.00640, section 2: standard errors clustered by question). Where each task has 0
or 1 it is Wilson's (1927, JASA 22:158): the approximation goes beyond them, and has no width where all are alike.
pass@k is the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, section 2.1), `1 - C(n - c, k) / C(n, k)` of n
scored rollouts of which c pass; a task with fewer than k scored rollouts is not in it.

A rollout that failed has no reward, and is in no mean, unless spec.rollout.onFailure makes it 0.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gymtrain_trainer.monitoring.record import StepFile
from gymtrain_trainer.rollouts.evaluation import EvaluationEnd, TaskEnds

EVALUATIONS_FILE = "evaluations.csv"
ALL = "(all)"  # the row of all environments; no server of a Gym config can have the name
_Z = 1.959964  # of 95 %
_ENOUGH_SCORED = 0.9  # of the rollouts


@dataclass(frozen=True)
class EvaluationRow:
    """One environment in one evaluation.

    Attributes:
        step: that trained the weights; 0 before training.
        version: label of the weights.
        environment: agent server, or ALL.
        tasks: of which at least one rollout has a reward.
        rollouts: that have a reward.
        failed: that failed.
        zeroed: of these, those that count with reward 0 (spec.rollout.onFailure).
        failures: all that failed, by kind: `deadline 1, timeout 3`.
        reward: mean over tasks; None where nothing has a reward.
        reward_low, reward_high: its 95 % interval; None with fewer than two tasks.
        pass_1, pass_k: the share of tasks that a rollout, or one of `k`, passes.
        tokens: sampled in a rollout, mean of those that are known.
        truncated: share of these that hit the token limit.
        seconds: that the evaluation took.
        time: seconds since the epoch.
    """

    step: int
    version: str
    environment: str
    tasks: int
    rollouts: int
    failed: int
    zeroed: int
    failures: str
    reward: float | None
    reward_low: float | None
    reward_high: float | None
    pass_1: float | None
    pass_k: float | None
    k: int
    tokens: float | None
    truncated: float | None
    seconds: float
    time: float

    @classmethod
    def read(cls, row: Mapping[str, str]) -> "EvaluationRow":
        """From the file; a column that is missing there is empty."""
        made: dict[str, Any] = {}
        for field in fields(cls):
            text, kind = row.get(field.name) or "", field.type
            if kind is str:
                made[field.name] = text
            elif kind is int:
                made[field.name] = int(text or 0)
            else:
                made[field.name] = float(text) if text else None if kind is not float else 0.0
        return cls(**made)

    @property
    def counts(self) -> bool:
        """Whether it can be the best: one of which much failed says little, as what fails is not there by chance."""
        return self.reward is not None and self.rollouts >= _ENOUGH_SCORED * (self.rollouts + self.failed - self.zeroed)

    def numbers(self) -> dict[str, float]:
        """For metrics and trackers, by name."""
        names = ("reward", "reward_low", "reward_high", "pass_1", "pass_k", "tokens", "truncated", "tasks", "failed")
        known = {name: getattr(self, name) for name in names}
        return {name: float(value) for name, value in known.items() if value is not None}


class EvaluationsFile(StepFile[EvaluationRow]):
    """evaluations.csv."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, EvaluationRow)

    def rows(self) -> list[EvaluationRow]:
        """What is in it."""
        return [EvaluationRow.read(row) for row in self.read()]


def pass_at(k: int, rollouts: int, passed: int) -> float:
    """The chance that one of k of a task's rollouts passes, estimated from all of them."""
    return 1.0 - math.comb(rollouts - passed, k) / math.comb(rollouts, k)


def evaluation_rows(
    end: EvaluationEnd, *, step: int, version: str, samples: int, pass_reward: float, now: float
) -> list[EvaluationRow]:
    """The row of all environments, then one each by name.

    Args:
        end: of the evaluation.
        step: that made the weights.
        version: their label.
        samples: rollouts of each task: k.
        pass_reward: from which a rollout passes.
        now: seconds since the epoch.
    """
    agents = sorted({task.agent for task in end.tasks})
    found = {ALL: end.tasks} | {agent: tuple(task for task in end.tasks if task.agent == agent) for agent in agents}
    return [_row(tasks, name, step, version, samples, pass_reward, end.seconds, now) for name, tasks in found.items()]


def _row(
    tasks: Sequence[TaskEnds],
    environment: str,
    step: int,
    version: str,
    samples: int,
    pass_reward: float,
    seconds: float,
    now: float,
) -> EvaluationRow:
    rollouts = [rollout for task in tasks for rollout in task.rollouts]
    rewards = [
        found
        for task in tasks
        if (found := [rollout.reward for rollout in task.rollouts if rollout.reward is not None])
    ]
    means = [statistics.fmean(of_task) for of_task in rewards]
    reward = statistics.fmean(means) if means else None
    low, high = _interval(means)
    passes = [(len(of_task), sum(one >= pass_reward for one in of_task)) for of_task in rewards]
    known = [rollout for rollout in rollouts if rollout.tokens is not None]
    failed = [rollout for rollout in rollouts if rollout.failure]
    return EvaluationRow(
        step=step,
        version=version,
        environment=environment,
        tasks=len(means),
        rollouts=sum(map(len, rewards)),
        failed=len(failed),
        zeroed=sum(one.zeroed for one in failed),
        failures=", ".join(f"{kind} {n}" for kind, n in sorted(Counter(one.failure for one in failed).items())),
        reward=_rounded(reward),
        reward_low=_rounded(low),
        reward_high=_rounded(high),
        pass_1=_mean(pass_at(1, n, c) for n, c in passes),
        pass_k=_mean(pass_at(samples, n, c) for n, c in passes if n >= samples),
        k=samples,
        tokens=_mean(float(one.tokens or 0) for one in known),
        truncated=_mean(float(one.truncated) for one in known),
        seconds=round(seconds, 3),
        time=round(now, 3),
    )


def _interval(means: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """The 95 % interval of the mean over tasks; none of fewer than two."""
    n = len(means)
    if n < 2:
        return None, None
    mean = statistics.fmean(means)
    if set(means) <= {0.0, 1.0}:
        shift = _Z**2 / (2 * n)
        half = _Z * math.sqrt(mean * (1 - mean) / n + (_Z / (2 * n)) ** 2)
        scale = 1 + _Z**2 / n
        return max((mean + shift - half) / scale, 0.0), min((mean + shift + half) / scale, 1.0)
    half = _Z * statistics.stdev(means) / math.sqrt(n)
    return mean - half, mean + half


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return _rounded(statistics.fmean(found)) if found else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
