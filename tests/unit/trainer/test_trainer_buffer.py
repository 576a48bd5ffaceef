"""The queue that TRL drains, and its account of what was used."""

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from gymtrain_trainer.rollouts.buffer import SampleBuffer


def sample(group: int, version: int = 1, reward: float = 0.0, tokens: int = 2) -> Any:
    class Mask:
        def sum(self) -> int:
            return tokens

    return SimpleNamespace(
        group_id=group,
        model_version=version,
        metrics={"reward": reward, "reward_std": 0.5},
        completion_mask=Mask(),
    )


def test_it_times_out_like_any_queue() -> None:
    with pytest.raises(queue.Empty):
        SampleBuffer(4, lambda: 1).get(timeout=0.01)


def test_the_samples_of_a_step_are_those_taken_first() -> None:
    buffer = SampleBuffer(4, lambda: 1)
    buffer.put_group([sample(0, reward=1.0), sample(0, reward=0.0)])
    buffer.put_group([sample(1, reward=0.5), sample(1, reward=0.5)])
    for _ in range(4):
        buffer.get()
    assert [taken.reward for taken in buffer.use(2)] == [1.0, 0.0]
    assert [taken.reward for taken in buffer.use(2)] == [0.5, 0.5]


def test_stale_samples_count_for_no_step() -> None:
    buffer = SampleBuffer(1, lambda: 5)
    buffer.put_group([sample(0, version=3)])
    buffer.put_group([sample(1, version=4)])
    buffer.get()
    buffer.get()
    assert [(taken.group_id, taken.staleness) for taken in buffer.use(9)] == [(1, 1)]
    assert buffer.stale == 1


def test_it_knows_which_groups_nobody_used_yet() -> None:
    buffer = SampleBuffer(4, lambda: 1)
    buffer.put_group([sample(0), sample(0)])
    buffer.put_group([sample(1)])
    buffer.get()
    assert sorted(buffer.waiting_groups()) == [0, 1]
    assert buffer.taken_groups() == [0]
    buffer.get()
    buffer.use(2)
    assert buffer.waiting_groups() == [1]
    assert buffer.taken_groups() == []
