"""The numbers that trackers get of a report, by names that stay."""

import pytest

from gymtrain_trainer.errors import DropReason
from gymtrain_trainer.framework import SampleGroup, TrainingSample
from gymtrain_trainer.monitoring.record import step_record
from gymtrain_trainer.monitoring.series import equal_rewards_share, series_of
from gymtrain_trainer.progress import Loss
from gymtrain_trainer.rollouts.buffer import UsedGroup


def group(agent: str, rewards: tuple[float, ...], version: int, *, truncated: bool = False) -> UsedGroup:
    samples = tuple(
        TrainingSample([1, 2], [0, 1], [0.0, -1.0], (version,), 0, number, agent, reward, truncated=truncated)
        for number, reward in enumerate(rewards)
    )
    return UsedGroup(SampleGroup(0, agent, rewards, samples), 5)


def test_each_environment_has_series_of_its_own() -> None:
    used = [group("math", (0.0, 1.0), 5), group("math", (1.0, 1.0), 4), group("code", (0.0, 0.0), 3, truncated=True)]
    found = series_of(
        step_record(7, used, 2.0, now=1.0),
        used,
        numbers={"weight_sync_s": 0.5, "loss": 1.0},
        dropped={DropReason.EQUAL_REWARDS: 3},
        lost={Loss("code", "timeout", True): 2, Loss("code", "environment", False): 1},
        equal_rewards_share=0.5,
    )
    assert found["gymtrain/reward"] == 0.5
    assert found["gymtrain/agents/math/reward"] == 0.75
    assert found["gymtrain/agents/code/reward"] == 0.0
    assert found["gymtrain/agents/math/rollouts"] == 4
    assert found["gymtrain/agents/code/truncated"] == 1.0
    assert found["gymtrain/agents/math/truncated"] == 0.0
    assert found["gymtrain/staleness"] == 1.0
    assert found["gymtrain/staleness_max"] == 2.0
    assert found["gymtrain/weight_sync_seconds"] == 0.5
    assert found["gymtrain/tokens_per_second"] == pytest.approx(3.0)
    assert found["gymtrain/dropped/equal_rewards"] == 3
    assert found["gymtrain/equal_rewards_share"] == 0.5
    assert found["gymtrain/agents/code/lost_rollouts"] == 3
    assert "gymtrain/loss" not in found, "TRL's own numbers have names of TRL's"
    assert all(isinstance(value, float) for value in found.values())
    folders = {name.rpartition("/")[0] for name in found}
    assert not folders & found.keys(), "MLflow keeps a file for each"


def test_a_rollout_of_many_truncated_samples_counts_once() -> None:
    forked = [TrainingSample([1, 2], [0, 1], [0.0, -1.0], (5,), 0, 0, "code", 0.0, truncated=True)] * 3
    whole = TrainingSample([1, 2], [0, 1], [0.0, -1.0], (5,), 0, 1, "code", 1.0)
    used = [UsedGroup(SampleGroup(0, "code", (0.0, 1.0), (*forked, whole)), 5)]
    record = step_record(1, used, 1.0, now=1.0)
    found = series_of(record, used, numbers={}, dropped={}, lost={}, equal_rewards_share=0.0)
    assert found["gymtrain/agents/code/truncated"] == 0.5


def test_groups_of_equal_rewards_are_a_share_of_those_that_were_used_and_left_out() -> None:
    used = [group("math", (0.0, 1.0), 5), group("math", (0.1, 0.1), 5)]
    assert equal_rewards_share(used, left_out=0) == 0.5
    assert equal_rewards_share(used[:1], left_out=3) == 0.75
    assert equal_rewards_share([], left_out=0) == 0.0
