"""The queue that the trainer drains, and its account of what was used."""

import queue
from dataclasses import replace

import pytest

from gymtrain_trainer.framework import TrainingSample
from gymtrain_trainer.rollouts.buffer import SampleBuffer


def sample(group: int, version: int = 1, reward: float = 0.0, tokens: int = 2) -> TrainingSample:
    return TrainingSample(
        token_ids=[5] * tokens,
        mask=[1] * tokens,
        log_probs=[-0.5] * tokens,
        advantage=0.0,
        versions=(version,),
        group_id=group,
        agent="adder",
        reward=reward,
        reward_deviation=0.5,
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


def test_a_group_that_grew_stale_never_reaches_the_trainer_and_is_reported_once() -> None:
    buffer, reported = SampleBuffer(1, lambda: 5), []
    buffer.on_stale = lambda group, staleness: reported.append((group, staleness))
    buffer.put_group([sample(0, version=3), sample(0, version=5)])
    buffer.put_group([sample(1, version=4)])
    assert buffer.get().group_id == 1
    assert [(taken.group_id, taken.staleness) for taken in buffer.use(9)] == [(1, 1)]
    assert (buffer.stale, reported) == (2, [(0, 2)])


def test_a_group_that_was_begun_before_the_weights_changed_goes_on_as_far_as_the_rule_allows() -> None:
    version, reported = [4], []
    buffer = SampleBuffer(1, lambda: version[0])
    buffer.on_stale = lambda group, staleness: reported.append(group)
    buffer.put_group([sample(0, version=3), sample(0, version=4), sample(0, version=3)])
    buffer.put_group([sample(1, version=5)])
    assert buffer.get().version == 3
    version[0] = 5
    assert buffer.get().version == 4
    assert buffer.get().group_id == 1
    assert (buffer.stale, reported) == (1, [])


def test_a_wait_ends_at_its_deadline_even_where_stale_samples_come() -> None:
    buffer = SampleBuffer(0, lambda: 9)
    buffer.put_group([sample(0, version=1)])
    with pytest.raises(queue.Empty):
        buffer.get(timeout=0.05)


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


def test_a_sample_that_a_grammar_held_is_known_as_one_when_its_step_is_told() -> None:
    buffer = SampleBuffer(4, lambda: 1)
    buffer.put_group([sample(0), replace(sample(0), constrained=True)])
    for _ in range(2):
        buffer.get()
    assert [taken.constrained for taken in buffer.use(2)] == [False, True]
