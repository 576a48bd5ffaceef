"""The half on the real API server with nodes that are played: faults by seed, and what is found."""

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.chaos.api_faults import FAULTS
from tests.chaos.api_world import ApiWorld, api_world
from tests.chaos.fault import Fault, NothingToHit, schedule
from tests.chaos.memory import Growth, growth

_AT_ONCE = 2  # faults
_MOST_PAUSE_SECONDS = 4.0
_TRIES = 20  # of a fault that finds nothing to hit
_SETTLE_SECONDS = 420.0
_QUIET_SECONDS = 45.0
_STUCK_FAULT_SECONDS = 600.0


@dataclass
class Outcome:
    """What came of one seed."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    wrong: list[str] = field(default_factory=list)
    memory: Growth | None = None
    seconds: float = 0.0

    def document(self) -> dict[str, object]:
        """As JSON has it."""
        memory = asdict(self.memory) if self.memory else None
        counts = {"faults": dict(self.faults), "ends": dict(self.ends)}
        return {**vars(self), **counts, "memory": memory}


class _Parts:
    """Which parts of the world are being broken just now."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._changed = asyncio.Condition()

    async def take(self, fault: Fault[ApiWorld]) -> None:
        """Waits until the fault may begin."""
        async with self._changed:
            await self._changed.wait_for(lambda: fault.part not in self._taken)
            if fault.part:
                self._taken.add(fault.part)

    async def give_back(self, fault: Fault[ApiWorld]) -> None:
        """Notes that the fault is healed."""
        async with self._changed:
            self._taken.discard(fault.part)
            self._changed.notify_all()


async def play(folder: Path, seed: int, faults: int, runs_at_once: int) -> Outcome:
    """Breaks that many things while runs come and go, and waits until all is as it should be."""
    began = time.monotonic()
    outcome = Outcome(seed)
    async with api_world(folder, seed) as world:
        with _background(world.follow_runs, world.find_gone, world.look_for_doubles, world.watch_the_operator) as tasks:
            lives = [asyncio.create_task(world.populate()) for _ in range(runs_at_once)]
            await asyncio.sleep(10)
            with (folder / "faults.jsonl").open("w") as record:
                await _break_things(world, seed, faults, outcome, record)
            world.end_population()
            await _settle(world, lives, outcome)
            await _judge(world, outcome)
            outcome.wrong += [repr(task.exception()) for task in tasks if task.done() and not task.cancelled()]
    outcome.seconds = time.monotonic() - began
    return outcome


@contextmanager
def _background(*parts: object) -> Iterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(part()) for part in parts]  # type: ignore[operator]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()


async def _break_things(world: ApiWorld, seed: int, number: int, outcome: Outcome, record: object) -> None:
    slots, parts = asyncio.Semaphore(_AT_ONCE), _Parts()
    pauses = random.Random(f"{seed}/pauses")
    began = time.monotonic()

    async def one(place: int, fault: Fault[ApiWorld]) -> None:
        line: dict[str, object] = {"number": place, "at": round(time.monotonic() - began, 1), "fault": fault.name}
        try:
            async with asyncio.timeout(_STUCK_FAULT_SECONDS):
                hit = await _act(world, fault, random.Random(f"{seed}/fault/{place}"))
            for story, ends in hit.costs:
                story.faults.append(f"{place} {fault.name}: {hit.what}")
                if ends is not None:
                    story.hits[ends] += 1
            outcome.faults[fault.name] += 1
            line["what"] = hit.what
        except NothingToHit:
            line["what"] = "nothing to hit"
        except Exception as error:
            outcome.wrong.append(f"the fault {fault.name} itself failed: {error!r}")
            line["what"] = repr(error)
        finally:
            await parts.give_back(fault)
            slots.release()
        line["seconds"] = round(time.monotonic() - began - float(str(line["at"])), 1)
        record.write(json.dumps(line) + "\n")  # type: ignore[attr-defined]
        record.flush()  # type: ignore[attr-defined]
        print(f"{place}/{number} {fault.name}: {line['what']}; load {os.getloadavg()[0]:.1f}", flush=True)

    async with asyncio.TaskGroup() as group:
        for place, fault in enumerate(schedule(FAULTS, number, seed), start=1):
            await slots.acquire()
            await parts.take(fault)
            group.create_task(one(place, fault))
            await asyncio.sleep(pauses.uniform(0, _MOST_PAUSE_SECONDS))


async def _act(world: ApiWorld, fault: Fault[ApiWorld], draw: random.Random):  # type: ignore[no-untyped-def]
    for _ in range(_TRIES):
        try:
            return await fault.act(world, draw)
        except NothingToHit:
            await asyncio.sleep(1)
    raise NothingToHit


async def _settle(world: ApiWorld, lives: list[asyncio.Task[None]], outcome: Outcome) -> None:
    """After the last fault all runs end, and are deleted, within a time."""
    _, pending = await asyncio.wait(lives, timeout=_SETTLE_SECONDS)
    for life in lives:
        if life in pending:
            life.cancel()
        elif error := life.exception():
            outcome.wrong.append(f"a run could not live: {error!r}")
    for story in [s for s in world.stories if not s.over]:
        outcome.wrong.append(f"{story.key} isn't gone {_SETTLE_SECONDS:.0f} s after the last fault")


async def _judge(world: ApiWorld, outcome: Outcome) -> None:
    if all(story.over for story in world.stories):
        outcome.wrong += [f"left over: {left}" for left in await world.leftovers()]
    before, process = _errors(world), world.operator.process
    await asyncio.sleep(_QUIET_SECONDS)
    after = _errors(world)
    if process is world.operator.process and after != before:
        outcome.wrong.append(f"reconciles still fail {_QUIET_SECONDS:.0f} s later: {before} -> {after}")
    outcome.runs = len(world.stories)
    for story in world.stories:
        outcome.ends[story.end or ("deleted" if story.by_hand else "none")] += 1
        judged = story.judgement()
        for wrong in [*story.wrong, *([judged] if judged else [])]:
            outcome.wrong.append(f"{story.key} ({story.life.kind}): {wrong}; hit by {story.faults}")
    outcome.wrong += world.wrong
    outcome.wrong += [f"two trainers on one volume: {text}" for text in world.node.two_trainers]
    outcome.wrong += [f"the played node: {error}" for error in world.node.errors]
    log = world.log.read_text(errors="replace")
    outcome.wrong += [f"in the operator's log: {text}" for text in _surprises(log)]
    outcome.memory = growth(world.samples) if world.samples else None
    if outcome.memory and not outcome.memory.is_flat:
        outcome.wrong.append(f"the operator grows: {outcome.memory}")


def _errors(world: ApiWorld) -> float:
    return sum(v for k, v in world.operator.metrics().items() if k.startswith("gymtrain_operator_reconcile_errors"))


def _surprises(log: str) -> list[str]:
    """Errors that nobody expected: they have a traceback. Of each the last lines."""
    found: Counter[str] = Counter()
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            found["\n".join(lines[max(0, number - 1) : number + 60])[:4000]] += 1
    return [f"{count} times {text}" for text, count in found.most_common(5)]
