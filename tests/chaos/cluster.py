"""The half on the real cluster: faults by seed, and what is found."""

import asyncio
import time
from pathlib import Path

from tests.chaos.cluster_faults import FAULTS
from tests.chaos.cluster_world import cluster_world
from tests.chaos.fault import schedule
from tests.chaos.harness import Breaker, Outcome, beside, judge, settle
from tests.chaos.memory import growth
from tests.support.install import OPERATOR_NAMESPACE
from tests.support.pod_cut import heal

_FIRST_SECONDS = 90.0  # without faults
_MOST_PAUSE_SECONDS = 40.0
_SETTLE_SECONDS = 1800.0


async def play(folder: Path, seed: int, faults: int, runs_at_once: int) -> Outcome:
    """Breaks that many things while runs come and go, and waits until all is as it should be."""
    began = time.monotonic()
    outcome = Outcome(seed)
    heal()  # what an earlier one left that was killed
    async with (
        cluster_world(seed) as world,
        beside(outcome, world.follow_runs, world.find_gone, world.look_for_doubles, world.watch_the_operator),
    ):
        lives = [asyncio.create_task(world.populate()) for _ in range(runs_at_once)]
        await asyncio.sleep(_FIRST_SECONDS)
        breaker = Breaker(world, seed, outcome, folder / "faults.jsonl")
        await breaker.play(schedule(FAULTS, faults, seed), _MOST_PAUSE_SECONDS)
        world.end_population()
        await settle(world, lives, outcome, _SETTLE_SECONDS)
        if all(story.over for story in world.stories):
            outcome.wrong += [f"left over: {left}" for left in await world.leftovers()]
        judge(world, outcome)
        checks = world.checks
        outcome.notes.append(f"{checks.samples} samples of {checks.runs} runs checked, {checks.wrong} checks wrong")
        log = world.kubectl(OPERATOR_NAMESPACE).run("logs", "deployment/gymtrain-operator", check=False)
        (folder / "operator.log").write_text(log)
        if "Traceback (most recent call last)" in log:
            outcome.wrong.append(f"an unexpected error in the operator's log: {folder / 'operator.log'}")
        outcome.memory = growth(world.samples) if world.samples else None
        if outcome.memory and not outcome.memory.is_flat:
            outcome.wrong.append(f"the operator grows: {outcome.memory}")
    outcome.seconds = time.monotonic() - began
    return outcome
