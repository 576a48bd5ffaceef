"""The half on the real API server, with pods that are played: faults by seed, and what is found."""

import asyncio
from collections import Counter
from pathlib import Path

from tests.chaos.api_faults import FAULTS
from tests.chaos.api_world import ApiWorld, api_world
from tests.chaos.harness import Outcome, Pace, chaos

_PACE = Pace(first=10.0, most_pause=4.0, settle=420.0)
_QUIET_SECONDS = 45.0
# What kopf says of an answer that broke off while it asked what the API server serves; the operator starts it again.
_KNOWN = ('{"event": "Resource observer has failed: ', "/kopf/_cogs/clients/scanning.py:")
_ERRORS = "gymtrain_operator_reconcile_errors_total"


async def play(folder: Path, seed: int, faults: int, runs_at_once: int) -> Outcome:
    """Breaks that many things while runs come and go, and waits until all is as it should be."""
    outcome = Outcome(seed)
    async with (
        api_world(folder, seed) as world,
        chaos(world, FAULTS, faults, runs_at_once, _PACE, outcome, folder),
    ):
        await _comes_to_rest(world, outcome)
        _judge_processes(world, outcome)
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


def _surprises(log: str) -> list[str]:
    """Errors that nobody expected: those have a traceback. Of each the first lines."""
    found: Counter[str] = Counter()
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if "Traceback (most recent call last)" in line and not any(known in line for known in _KNOWN):
            found["\n".join(lines[max(0, number - 1) : number + 60])[:4000]] += 1
    return [f"{count} times {text}" for text, count in found.most_common(5)]
