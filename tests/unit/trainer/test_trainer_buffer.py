"""The queue that the trainer drains, and its account of what was used."""

import queue
import threading
import time

import pytest

from gymtrain_trainer.framework import SampleGroup, TrainingSample
from gymtrain_trainer.rollouts.buffer import GroupBuffer
from tests.unit.trainer.trainer_data import group


def test_it_times_out_like_any_queue() -> None:
    with pytest.raises(queue.Empty):
        GroupBuffer(lambda: 1).get(timeout=0.01)


def test_a_wait_ends_when_a_group_comes() -> None:
    buffer = GroupBuffer(lambda: 1)
    threading.Timer(0.05, buffer.put, [group(3)]).start()
    assert buffer.get(timeout=60).id == 3


def test_the_groups_of_a_step_are_those_taken_since_the_step_before() -> None:
    buffer = GroupBuffer(lambda: 1)
    for number in range(3):
        buffer.put(group(number))
    buffer.get(1)
    buffer.get(1)
    assert [one.group.id for one in buffer.use()] == [0, 1]
    buffer.get(1)
    assert [one.group.id for one in buffer.use()] == [2]


def test_the_group_of_the_oldest_weights_goes_first() -> None:
    buffer = GroupBuffer(lambda: 9)
    for number, version in enumerate([5, 3, 5, 3]):
        buffer.put(group(number, versions=[version]))
    assert [buffer.get(1).id for _ in range(4)] == [1, 3, 0, 2]


def test_staleness_counts_to_the_weights_of_the_step_that_uses_a_rollout() -> None:
    version = [3]
    buffer = GroupBuffer(lambda: version[0])
    buffer.put(group(0, versions=[2, 3]))
    version[0] = 6  # it waited
    buffer.get(1)
    [used] = buffer.use()
    assert (used.version, used.staleness) == (6, (4, 3))


def test_the_staleness_of_a_rollout_that_forked_is_that_of_its_oldest_sample() -> None:
    samples = group(0, versions=[5, 3]).samples
    forked = tuple(TrainingSample(**(vars(sample) | {"rollout": 0})) for sample in samples)
    buffer = GroupBuffer(lambda: 6)
    buffer.put(SampleGroup(0, "adder", (1.0,), forked))
    buffer.get(1)
    assert buffer.use()[0].staleness == (3,)


def test_a_step_tells_how_long_it_waited_for_its_groups_and_what_it_left() -> None:
    buffer = GroupBuffer(lambda: 1)
    with pytest.raises(queue.Empty):
        buffer.get(timeout=0.2)
    for number in range(3):
        buffer.put(group(number))
    buffer.get(1)
    time.sleep(0.1)
    buffer.use()
    assert 0.3 < buffer.wait.share < 0.9
    assert buffer.wait.left == 2
    buffer.get(1)
    time.sleep(0.1)
    buffer.use()
    assert buffer.wait.share < 0.3
    assert buffer.wait.left == 1


def test_it_counts_what_waits_what_is_taken_and_what_was_used() -> None:
    buffer = GroupBuffer(lambda: 1)
    for number in range(4):
        buffer.put(group(number))
    buffer.get(1)
    buffer.use()
    buffer.get(1)
    stock = buffer.stock()
    assert (stock.waiting, stock.taken, stock.used, stock.steps) == (2, 1, 1, 1)


def test_the_worker_hears_of_each_group_that_is_taken_and_of_each_step() -> None:
    buffer, heard = GroupBuffer(lambda: 1), []
    buffer.on_change = lambda: heard.append(buffer.stock().used)
    buffer.put(group(0))
    buffer.get(1)
    buffer.use()
    assert heard == [0, 1]


def test_whoever_checks_samples_sees_each_of_a_group() -> None:
    buffer, seen = GroupBuffer(lambda: 1), []
    buffer.on_taken = lambda sample: seen.append(sample.rollout)
    buffer.put(group(0, rewards=[1.0, 0.0, 0.0]))
    buffer.get(1)
    assert seen == [0, 1, 2]
