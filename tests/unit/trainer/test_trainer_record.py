"""The record of a step."""

import json

import pytest

from gymtrain_trainer.framework import SampleGroup, TrainingSample
from gymtrain_trainer.monitoring.record import step_line, step_record
from gymtrain_trainer.rollouts.buffer import UsedGroup
from tests.unit.trainer.trainer_data import group


def test_a_steps_line_names_the_weights_of_its_samples() -> None:
    used = [
        UsedGroup(group(1, rewards=[1.0, 0.0], versions=[3, 3]), 3),
        UsedGroup(group(2, rewards=[0.0, 0.5], versions=[2, 3]), 3),
    ]
    record = step_record(7, used, seconds=2.0, now=100.0)
    line = json.loads(step_line(record, used, "run:1:{}".format, {"weight_sync_s": 0.25}))
    assert line["event"] == "step"
    assert line["step"] == 7
    assert line["reward"] == 0.375
    assert line["weight_sync_s"] == 0.25
    assert (line["groups"], line["rollouts"], line["samples"]) == (2, 4, 4)
    assert line["weight_versions"] == ["run:1:2", "run:1:3"]


def test_the_numbers_of_a_step_are_means_over_rollouts_however_many_samples_each_has() -> None:
    plain = group(1, rewards=[1.0, 0.0], versions=[4, 2])
    forks = tuple(TrainingSample(**(vars(plain.samples[1]) | {"rollout": 1})) for _ in range(8))
    used = [UsedGroup(SampleGroup(1, "adder", plain.rewards, (plain.samples[0], *forks)), 4)]
    record = step_record(1, used, seconds=1.0, now=0.0)
    assert (record.reward, record.reward_std, record.staleness) == (0.5, 0.5, 1.0)


def test_a_failed_rollout_that_counts_as_0_is_in_the_logged_reward_with_or_without_tokens() -> None:
    made = group(1, rewards=[1.0, 1.0])
    used = [UsedGroup(SampleGroup(1, "adder", (*made.rewards, 0.0, 0.0), made.samples), 1)]
    record = step_record(1, used, seconds=1.0, now=0.0)
    assert (record.reward, record.reward_std, record.groups) == (0.5, 0.5, 1)


def test_equal_rewards_have_a_deviation_of_exactly_0() -> None:
    assert group(1, rewards=[0.1] * 7).reward_deviation == 0.0
    assert group(1, rewards=[0.0, 1.0]).reward_deviation == pytest.approx(0.5)
