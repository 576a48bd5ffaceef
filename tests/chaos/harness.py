"""What both halves share: faults beside runs that live, two at a time at most, and the judgement."""

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.chaos.fault import Fault, Hit, NothingToHit, schedule
from tests.chaos.memory import Growth, growth
from tests.chaos.population import Population

_AT_ONCE = 2
_TRIES = 20  # of a fault that finds nothing to hit
_STUCK_SECONDS = 900.0


@dataclass(frozen=True)
class Pace:
    """How long things take.

    Attributes:
        first: seconds without faults.
        most_pause: seconds between the beginnings of two faults, at most.
        settle: seconds in which all runs end after the last fault.
    """

    first: float
    most_pause: float
    settle: float


@dataclass
class Outcome:
    """What came of one seed.

    Attributes:
        faults: how many there were, by name.
        ends: how many runs ended for a reason; or were deleted before they had ended.
        wrong: what must not be.
        notes: figures that belong into the record.
    """

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    memory: Growth | None = None
    seconds: float = 0.0

    def document(self) -> dict[str, object]:
        """As JSON has it."""
        memory = asdict(self.memory) if self.memory else None
        return {**vars(self), "faults": dict(self.faults), "ends": dict(self.ends), "memory": memory}


class _Parts:
    """Which parts of the world are being broken just now."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._changed = asyncio.Condition()

    async def take(self, part: str) -> None:
        """Waits until nobody else breaks that part."""
        async with self._changed:
            await self._changed.wait_for(lambda: part not in self._taken)
            self._taken |= {part} - {""}

    async def give_back(self, part: str) -> None:
        """Notes that it is healed."""
        async with self._changed:
            self._taken.discard(part)
            self._changed.notify_all()


class Breaker[W: Population]:
    """Breaks things in a world, and keeps record of it in a file."""

    def __init__(self, world: W, seed: int, outcome: Outcome, record: Path) -> None:
        self._world, self._seed, self._outcome, self._record = world, seed, outcome, record
        self._slots, self._parts = asyncio.Semaphore(_AT_ONCE), _Parts()
        self._began = time.monotonic()

    async def play(self, faults: Sequence[Fault[W]], most_pause: float) -> None:
        """All faults in this order, with pauses of up to `most_pause` seconds between their beginnings."""
        pauses = random.Random(f"{self._seed}/pauses")
        async with asyncio.TaskGroup() as group:
            for place, fault in enumerate(faults, start=1):
                await self._slots.acquire()
                await self._parts.take(fault.part)
                group.create_task(self._one(f"{place}/{len(faults)}", fault))
                await asyncio.sleep(pauses.uniform(0, most_pause))

    async def _one(self, place: str, fault: Fault[W]) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_STUCK_SECONDS):
                hit = await self._act(fault, random.Random(f"{self._seed}/fault/{place}"))
            for story, ends in hit.costs:
                story.faults.append(f"{place} {fault.name}: {hit.what}")
                if ends is not None:
                    story.hits[ends] += 1
            self._outcome.faults[fault.name] += 1
            what = hit.what
        except NothingToHit:
            what = "nothing to hit"
        except Exception as error:
            what = repr(error)
            self._outcome.wrong.append(f"the fault {fault.name} itself failed: {what}")
        finally:
            await self._parts.give_back(fault.part)
            self._slots.release()
        seconds = round(time.monotonic() - began, 1)
        line = {"place": place, "at": round(began - self._began, 1), "fault": fault.name, "what": what}
        with self._record.open("a") as record:
            record.write(json.dumps(line | {"seconds": seconds}) + "\n")
        print(f"{place} {fault.name}: {what}; load {os.getloadavg()[0]:.1f}", flush=True)

    async def _act(self, fault: Fault[W], draw: random.Random) -> Hit:
        for _ in range(_TRIES):
            try:
                return await fault.act(self._world, draw)
            except NothingToHit:
                await asyncio.sleep(1)
        raise NothingToHit


@asynccontextmanager
async def chaos[W: Population](
    world: W, faults: Sequence[Fault[W]], number: int, runs_at_once: int, pace: Pace, outcome: Outcome, folder: Path
) -> AsyncIterator[None]:
    """Breaks that many things while runs come and go, and waits until all is as it should be; after the block, in which
    the world is still watched, all is judged that both halves have."""
    watches = (world.follow_runs, world.find_gone, world.look_for_doubles, world.watch_the_operator)
    async with _beside(outcome, *watches):
        lives = [asyncio.create_task(world.populate()) for _ in range(runs_at_once)]
        await asyncio.sleep(pace.first)
        breaker = Breaker(world, outcome.seed, outcome, folder / "faults.jsonl")
        await breaker.play(schedule(faults, number, outcome.seed), pace.most_pause)
        world.end_population()
        await _settle(world, lives, outcome, pace.settle)
        if all(story.over for story in world.stories):
            outcome.wrong += [f"left over: {left}" for left in await world.leftovers()]
        yield
        _judge(world, outcome)


@asynccontextmanager
async def _beside(outcome: Outcome, *parts: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Does these up to the end of the block. None of them may end before."""
    tasks = [asyncio.ensure_future(part()) for part in parts]

    def ended(task: asyncio.Future[None]) -> None:
        if not task.cancelled():
            outcome.wrong.append(f"the harness itself: {task.exception()!r}")
            print(outcome.wrong[-1], flush=True)

    for task in tasks:
        task.add_done_callback(ended)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _settle(world: Population, lives: Sequence[asyncio.Task[None]], outcome: Outcome, seconds: float) -> None:
    """After the last fault all runs end, and are deleted, within a time."""
    _, pending = await asyncio.wait(lives, timeout=seconds)
    for life in pending:
        life.cancel()
    for life in lives:
        if life not in pending and (error := life.exception()):
            outcome.wrong.append(f"a run could not live: {error!r}")
    for story in world.stories:
        if not story.over:
            outcome.wrong.append(f"{story.key} isn't gone {seconds:.0f} s after the last fault; {story.state}")


def _judge(world: Population, outcome: Outcome) -> None:
    """Notes how each run ended, what is wrong about that, and whether the operator grew."""
    outcome.runs = len(world.stories)
    for story in world.stories:
        outcome.ends[story.end or ("deleted" if story.by_hand else "none")] += 1
        judged = story.judgement()
        for wrong in [*story.wrong, *([judged] if judged else [])]:
            outcome.wrong.append(f"{story.key} ({story.life.kind}): {wrong}; hit by {story.faults}")
    outcome.wrong += world.wrong
    outcome.notes += world.notes
    outcome.memory = growth(world.samples) if world.samples else None
    if outcome.memory and not outcome.memory.is_flat:
        outcome.wrong.append(f"the operator grows: {outcome.memory}")
