"""The half on the real API server, with pods that are played: faults by seed, and what is found."""

import asyncio
import time
from collections import Counter
from pathlib import Path

from tests.chaos.api_faults import FAULTS
from tests.chaos.api_world import ApiWorld, api_world
from tests.chaos.fault import schedule
from tests.chaos.harness import Breaker, Outcome, beside, judge, settle
from tests.chaos.memory import growth

_FIRST_SECONDS = 10.0  # without faults
_MOST_PAUSE_SECONDS = 4.0
_SETTLE_SECONDS = 420.0
_QUIET_SECONDS = 45.0
_ERRORS = "gymtrain_operator_reconcile_errors_total"


async def play(folder: Path, seed: int, faults: int, runs_at_once: int) -> Outcome:
    """Breaks that many things while runs come and go, and waits until all is as it should be."""
    began = time.monotonic()
    outcome = Outcome(seed)
    async with (
        api_world(folder, seed) as world,
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
        await _comes_to_rest(world, outcome)
        judge(world, outcome)
        _judge_processes(world, outcome)
    outcome.seconds = time.monotonic() - began
    return outcome


async def _comes_to_rest(world: ApiWorld, outcome: Outcome) -> None:
    """No error of a reconcile lasts."""
    before, process = await asyncio.to_thread(_errors, world), world.operator.process
    await asyncio.sleep(_QUIET_SECONDS)
    after = await asyncio.to_thread(_errors, world)
    if process is world.operator.process and after != before:
        outcome.wrong.append(f"reconciles still fail {_QUIET_SECONDS:.0f} s later: {before:.0f}, then {after:.0f}")
    outcome.notes.append(f"{after:.0f} reconciles of the last process ended in an error")


def _errors(world: ApiWorld) -> float:
    return sum(value for name, value in world.operator.metrics().items() if name.startswith(_ERRORS))


def _judge_processes(world: ApiWorld, outcome: Outcome) -> None:
    outcome.wrong += [f"two trainers on one volume: {text}" for text in world.node.two_trainers]
    outcome.wrong += [f"the played nodes: {error}" for error in world.node.errors]
    outcome.wrong += [f"in the operator's log: {text}" for text in _surprises(world.log.read_text(errors="replace"))]
    outcome.notes.append(f"requests that the proxy did something to: {world.api.troubled}")
    outcome.memory = growth(world.samples) if world.samples else None
    if outcome.memory and not outcome.memory.is_flat:
        outcome.wrong.append(f"the operator grows: {outcome.memory}")


def _surprises(log: str) -> list[str]:
    """Errors that nobody expected: those have a traceback. Of each the first lines."""
    found: Counter[str] = Counter()
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            found["\n".join(lines[max(0, number - 1) : number + 60])[:4000]] += 1
    return [f"{count} times {text}" for text, count in found.most_common(5)]
