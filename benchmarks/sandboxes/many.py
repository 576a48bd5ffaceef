"""Many sandboxes at the same moment: how long until all can be used, and what the broker's memory is then."""

import asyncio
import time
from contextlib import AsyncExitStack

from benchmarks.sandboxes import execs, ours, theirs
from benchmarks.sandboxes.kube import Kube
from benchmarks.sandboxes.load import Rated, Side, at_once
from benchmarks.sandboxes.places import FAKE, REAL, Place, at, namespace
from benchmarks.sandboxes.sheet import Figure


async def hundred(kube: Kube) -> list[Figure]:
    """Real ones. In each of ours a command is run, all at once."""
    return await _both(kube, REAL, 100)


async def fleet(kube: Kube) -> list[Figure]:
    """On fake nodes."""
    async with at(kube, FAKE):
        return await _both(kube, FAKE, 2000)


async def _both(kube: Kube, place: Place, count: int) -> list[Figure]:
    rated: dict[str, Rated] = {}
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    commands: float | None = None
    for name in ("ours", "agent-sandbox"):
        async with AsyncExitStack() as stack:
            space = await stack.enter_async_context(namespace(kube, f"bench-{name}"))
            side: Side
            if name == "ours":
                side = mine = await stack.enter_async_context(ours.broker(kube, space, place))
            else:
                side, mine = await stack.enter_async_context(theirs.pool(kube, space, place, 0)), None
            before[name] = side.resident()
            rated[name] = await at_once(side, count)
            after[name] = side.resident()
            if place is REAL and mine is not None:
                began = time.perf_counter()
                await asyncio.gather(*(execs.by_daemon(mine.http, held, ["true"]) for held in rated[name].held))
                commands = time.perf_counter() - began
            half, all_ = (rated[name].milliseconds(part) / 1000 for part in (50, 100))
            memory = f"{before[name]:.0f} to {after[name]:.0f} MB"
            got = f"{len(rated[name].held)} of {count}, {dict(rated[name].failures)}"
            print(f"   {name}: {got}; half in {half:.1f} s, all in {all_:.1f} s; {memory}", flush=True)
    what = f"{count} at once, {place.name}"
    load = {name: one.load for name, one in rated.items()}
    return [
        Figure(f"{what}: usable", "", {name: len(one.held) for name, one in rated.items()}, None, load),
        *(
            Figure(f"{what}: {word}", "s", {name: one.milliseconds(part) / 1000 for name, one in rated.items()})
            for part, word in ((50, "half of them"), (100, "all of them"))
        ),
        Figure(f"{what}: memory before", "MB", before),
        Figure(f"{what}: memory then", "MB", after),
        *([Figure(f"{what}: a command in each, all at once", "s", {"ours": commands})] if commands else []),
    ]
