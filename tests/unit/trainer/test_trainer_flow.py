"""Thousands of groups through the worker's rules, in simulated time: what is trained is what was drawn.

A trainer that takes steps, and groups that take seconds, as `pace` lets them begin; nothing runs for real.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from gymtrain_trainer.rollouts.pace import Bounds, Flow, Lead, StepWait, is_late, may_start, quick

STEP_SECONDS = 0.4
SYNC_SECONDS = 0.1


@dataclass
class Done:
    """What a simulated run came to."""

    trained: list[int] = field(default_factory=list)  # positions
    staleness: list[int] = field(default_factory=list)
    waited: float = 0.0
    seconds: float = 0.0
    most_running: int = 0


def simulate(bounds: Bounds, steps: int, duration: Callable[[int], float]) -> Done:
    """A run of `steps`; `duration`: seconds of the group at a position."""
    done, lead, version = Done(), Lead(), 1
    running: list[tuple[float, int, int, float]] = []  # end, position, version and time of its beginning
    waiting: list[tuple[int, int]] = []  # version, position
    durations: list[float] = []
    now, position, used = 0.0, 0, 0
    per_step = bounds.groups_per_step or 1

    def start(taken: int) -> None:
        nonlocal position
        while True:
            usual = quick(durations[-64:])
            late = sum(is_late(bounds, version - at, now - began, usual) for _, _, at, began in running)
            flow = Flow(version, len(running), len(running) * bounds.group_size, late, len(waiting), taken, used, used)
            if not may_start(bounds, flow, lead):
                return
            heapq.heappush(running, (now + duration(position), position, version, now))
            position += 1
            done.most_running = max(done.most_running, len(running))

    def pass_until(when: float, taken: int) -> None:
        nonlocal now
        start(taken)
        while running and running[0][0] <= when:
            now, ended, at, began = heapq.heappop(running)
            durations.append(now - began)
            heapq.heappush(waiting, (at, ended))
            start(taken)
        now = when

    for _ in range(steps):
        began, waited, taken = now, 0.0, 0
        while taken < per_step:
            start(taken)
            if not waiting:
                assert running, "nothing runs and nothing waits: the trainer would wait for ever"
                waited += running[0][0] - now
                pass_until(running[0][0], taken)
            at, one = heapq.heappop(waiting)
            done.trained.append(one)
            done.staleness.append(version - at)
            taken += 1
        left = len(waiting)
        pass_until(now + STEP_SECONDS, taken)
        used += taken
        lead = lead.after(StepWait(waited / (now - began), left), per_step, bounds)
        pass_until(now + SYNC_SECONDS, 0)
        version += 1
        done.waited += waited
    done.seconds = now
    return done


def run_of(steps: int, *, staleness: int = 4, concurrent: int = 4096) -> Bounds:
    return Bounds(8, 8, 1, staleness, concurrent, total=8 * steps)


def chi_squared(found: Counter[str], expected: dict[str, float]) -> float:
    total = sum(found.values())
    return sum((found[kind] - share * total) ** 2 / (share * total) for kind, share in expected.items())


@pytest.mark.parametrize("staleness", [0, 1, 4, 16])
def test_tasks_that_take_twenty_times_as_long_are_trained_as_often_as_they_are_drawn(staleness: int) -> None:
    """2,000 groups, one in four of them long; and one in four of those that any part of the run trained."""
    chance = random.Random(3)
    long = [chance.random() < 0.25 for _ in range(2000)]
    done = simulate(run_of(250, staleness=staleness), 250, lambda position: 10.0 if long[position] else 0.5)
    assert sorted(done.trained) == list(range(2000)), "each that was begun, once"
    found = Counter("long" if long[position] else "short" for position in done.trained)
    share = sum(long) / len(long)
    assert chi_squared(found, {"long": share, "short": 1 - share}) == 0.0
    # Within the run too: what was trained in its last three quarters has the same mix (p > 0.01 with one degree).
    late = Counter("long" if long[position] else "short" for position in done.trained[500:])
    assert chi_squared(late, {"long": share, "short": 1 - share}) < 6.63


@pytest.mark.parametrize("seconds", [0.1, 0.5, 3.0])
def test_on_policy_no_sample_is_of_other_weights_than_the_steps(seconds: float) -> None:
    chance = random.Random(5)
    done = simulate(run_of(60, staleness=0), 60, lambda _: seconds * chance.uniform(0.5, 2.0))
    assert set(done.staleness) == {0}


@pytest.mark.parametrize("staleness", [1, 2, 4, 8])
@pytest.mark.parametrize("seconds", [0.1, 0.5, 3.0, 20.0])
def test_groups_of_equal_length_are_never_staler_than_allowed(staleness: int, seconds: float) -> None:
    done = simulate(run_of(100, staleness=staleness), 100, lambda _: seconds)
    assert max(done.staleness) <= staleness


def test_where_rollouts_keep_up_the_trainer_does_not_wait() -> None:
    chance = random.Random(5)
    done = simulate(run_of(300), 300, lambda _: chance.uniform(0.3, 0.9))
    assert done.waited / done.seconds < 0.02
    assert sum(done.staleness) / len(done.staleness) < 3


def test_the_trainer_does_not_wait_for_the_slow_ones_among_quick_ones() -> None:
    """One group in ten takes 15 steps; without giving up their places these would hold all that staleness allows."""
    chance = random.Random(5)
    done = simulate(run_of(400), 400, lambda _: 6.5 if chance.random() < 0.1 else 0.5)
    assert done.waited / done.seconds < 0.05


def test_rollouts_at_once_are_bounded_whatever_they_take() -> None:
    done = simulate(run_of(50, concurrent=64), 50, lambda _: 5.0)
    assert done.most_running == 8
