"""When the next group starts."""

from dataclasses import replace
from typing import Any

import pytest

from gymtrain_trainer.rollouts.pace import Bounds, Flow, Lead, StepWait, failure_pause, is_late, may_start, quick

BOUNDS = Bounds(group_size=8, groups_per_step=4, sync_every_steps=1, max_staleness=2, max_concurrent=1000)
FLOW = Flow(
    version=1,
    running=0,
    running_rollouts=0,
    late=0,
    waiting=0,
    taken=0,
    used=0,
    steps=0,
)
MANY = Lead(1000)


def started(bounds: Bounds, lead: Lead = MANY, **flow: Any) -> int:
    """How many groups start, one after the other."""
    now = replace(FLOW, **flow)
    count = 0
    while may_start(bounds, now, lead) and count < 1000:
        count += 1
        now = replace(now, running=now.running + 1, running_rollouts=now.running_rollouts + bounds.group_size)
    return count


def test_before_the_first_step_no_more_start_than_it_uses() -> None:
    assert started(BOUNDS, Lead()) == 4


@pytest.mark.parametrize(("staleness", "groups"), [(0, 4), (1, 8), (4, 20)])
def test_as_many_are_begun_as_staleness_allows(staleness: int, groups: int) -> None:
    assert started(replace(BOUNDS, max_staleness=staleness)) == groups


def test_no_more_run_or_wait_than_the_trainer_was_seen_to_need() -> None:
    assert started(BOUNDS, Lead(6)) == 6
    assert started(BOUNDS, Lead(6), running=2, waiting=3, taken=4) == 1


@pytest.mark.parametrize(("share", "more"), [(0.02, 41), (0.1, 45), (0.5, 50), (1.0, 50)])
def test_a_trainer_that_waited_gets_as_much_more_as_it_lacked_and_at_most_a_quarter(share: float, more: int) -> None:
    assert Lead(40).after(StepWait(share, 0), 4, replace(BOUNDS, max_staleness=16)) == Lead(more)


def test_the_lead_ends_at_what_staleness_allows_to_run() -> None:
    """Where the servers are the slower side the trainer always waits: more groups would only be slower, each."""
    lead = Lead(8)
    for _ in range(50):
        lead = lead.after(StepWait(0.5, 0), 4, BOUNDS)
    assert lead == Lead(12)
    assert lead.after(StepWait(0.0, 9), 4, BOUNDS) == Lead(11)


def test_one_that_left_more_than_a_step_waiting_gets_one_less() -> None:
    assert Lead(8).after(StepWait(0.0, 6), 4, BOUNDS) == Lead(7)


def test_one_that_neither_waited_nor_left_much_gets_what_it_had() -> None:
    assert Lead(8).after(StepWait(0.0, 5), 4, BOUNDS) == Lead(8)


def test_the_lead_is_never_below_a_step() -> None:
    assert Lead(4).after(StepWait(0.0, 9), 4, BOUNDS) == Lead(4)


def test_on_policy_nothing_starts_from_a_steps_end_until_its_weights_are_synced() -> None:
    on_policy = replace(BOUNDS, max_staleness=0)
    assert started(on_policy, version=1, taken=4) == 0
    assert started(on_policy, version=1, used=4, steps=1) == 0
    assert started(on_policy, version=2, used=4, steps=1) == 4


def test_what_a_sync_interval_uses_may_be_begun_at_its_start() -> None:
    assert started(replace(BOUNDS, max_staleness=0, sync_every_steps=3)) == 12


def test_a_late_group_gives_up_its_place() -> None:
    busy: dict[str, Any] = {"version": 9, "used": 32, "steps": 8, "running": 10, "running_rollouts": 80}
    assert started(BOUNDS, **busy) == 2
    assert started(BOUNDS, **busy, late=3) == 5


def test_a_group_is_late_that_is_older_than_one_of_usual_length_becomes_and_slower_than_quick_ones() -> None:
    assert is_late(BOUNDS, 4, seconds=5.0, quick_seconds=2.0)
    assert not is_late(BOUNDS, 3, seconds=5.0, quick_seconds=2.0)
    assert not is_late(BOUNDS, 4, seconds=5.0, quick_seconds=3.0)


def test_a_quarter_of_the_groups_are_quick() -> None:
    assert quick([9.0, 1.0, 2.0, 9.0, 9.0, 9.0, 9.0, 9.0]) == 2.0
    assert quick([]) == float("inf")


def test_no_group_starts_where_all_slots_are_taken() -> None:
    assert started(replace(BOUNDS, max_concurrent=17)) == 2


def test_rollouts_that_have_ended_make_room_before_their_group_does() -> None:
    narrow = replace(BOUNDS, max_concurrent=16)
    assert started(narrow, running=2, running_rollouts=16) == 0
    assert started(narrow, running=2, running_rollouts=3) == 1


def test_a_group_larger_than_all_slots_still_runs_alone() -> None:
    assert started(replace(BOUNDS, max_concurrent=4)) == 1


def test_no_more_groups_are_begun_than_training_will_use() -> None:
    assert started(replace(BOUNDS, total=10), version=3, used=4, taken=4) == 2


def test_with_a_token_budget_the_groups_of_a_step_are_those_of_past_steps() -> None:
    by_tokens = replace(BOUNDS, groups_per_step=None)
    assert started(by_tokens, version=3, used=10, steps=2) == 15


def test_with_a_token_budget_groups_start_until_the_first_step_has_enough() -> None:
    by_tokens = replace(BOUNDS, groups_per_step=None)
    assert started(by_tokens, Lead(), taken=5) > 0
    assert started(by_tokens, Lead(), taken=5, running=6) == 0


@pytest.mark.parametrize("taken", [1, 2, 3, 20])
def test_with_a_token_budget_a_step_of_many_more_groups_than_those_before_gets_them(taken: int) -> None:
    by_tokens = replace(BOUNDS, groups_per_step=None, max_staleness=1)
    assert started(by_tokens, version=2, used=1, steps=1, taken=taken) > 0


def test_failures_slow_the_start_of_groups_up_to_a_limit() -> None:
    pauses = [failure_pause(n) for n in range(12)]
    assert pauses[0] == 0.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0
