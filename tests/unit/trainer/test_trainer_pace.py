"""How far rollouts run ahead of the trainer."""

import pytest

from gymtrain_trainer.rollouts.pace import bound, failure_pause, may_start, samples_ahead


def test_the_bound_is_one_sync_interval() -> None:
    assert samples_ahead(32, 1, 8) == 32
    assert samples_ahead(32, 4, 8) == 128


@pytest.mark.parametrize(
    ("starving", "version", "max_staleness", "expected"),
    [(True, 2, 4, 64), (False, 2, 4, 32), (True, 1, 4, 32), (True, 2, 1, 32)],
)
def test_a_starving_trainer_gets_more_at_once(starving: bool, version: int, max_staleness: int, expected: int) -> None:
    assert bound(32, starving=starving, version=version, max_staleness=max_staleness) == expected


def test_a_group_larger_than_the_step_may_still_run() -> None:
    assert samples_ahead(4, 1, 16) == 16
    assert may_start(in_flight=0, waiting=0, group_size=16, ahead=8, max_concurrent=4)


def test_no_group_starts_where_it_would_pass_the_bound() -> None:
    assert may_start(in_flight=16, waiting=8, group_size=8, ahead=32, max_concurrent=64)
    assert not may_start(in_flight=16, waiting=16, group_size=8, ahead=32, max_concurrent=64)


def test_no_group_starts_where_all_slots_are_taken() -> None:
    assert not may_start(in_flight=16, waiting=0, group_size=8, ahead=64, max_concurrent=16)


def test_failures_slow_the_start_of_groups_up_to_a_limit() -> None:
    pauses = [failure_pause(n) for n in range(12)]
    assert pauses[0] == 0.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0
