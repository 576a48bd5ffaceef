"""Claims at a fixed rate, whether earlier ones are answered or not, and what they cost."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.sandboxes.kube import Kube, Writes

_PATIENCE = 240.0
_CLOSING = 32  # at once


class ClaimError(Exception):
    """A claim got no sandbox."""


@dataclass(frozen=True)
class Held:
    """A sandbox that a client has."""

    id: str
    pod: str
    warm: bool  # it was ready when it was asked for
    url: str = ""  # of its daemon
    token: str = ""


class Side(Protocol):
    """One of those that are compared."""

    name: str
    namespace: str

    async def claim(self) -> Held:
        """A sandbox, once it can be used."""
        ...

    async def close(self, held: Held) -> None:
        """Gives it back."""
        ...

    async def ready(self) -> int:
        """Sandboxes that can be had at once."""
        ...

    def resident(self) -> float:
        """Memory of its program, in MB."""
        ...


@dataclass
class Rated:
    """What happened at one rate."""

    claims: int
    seconds: list[float] = field(default_factory=list)
    warm: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    claiming: Writes = field(default_factory=Counter[str])  # until as many were ready as before
    ending: Writes = field(default_factory=Counter[str])  # from there until all that was closed is gone
    load: float = 0.0
    held: list[Held] = field(default_factory=list)

    def milliseconds(self, part: int) -> float:
        """A percentile."""
        return percentile(self.seconds, part) * 1000

    def per_claim(self, writes: Writes) -> dict[str, float]:
        """Writes of one claim, without what is too rare to be its."""
        return {
            name: round(count / self.claims, 2) for name, count in writes.most_common() if count >= self.claims / 20
        }


def percentile(seconds: Sequence[float], part: int) -> float:
    """NaN of nothing."""
    if not seconds:
        return float("nan")
    return sorted(seconds)[min(len(seconds) - 1, round(part / 100 * (len(seconds) - 1)))]


async def at_rate(kube: Kube, side: Side, rate: float, count: int, pool: int) -> Rated:
    """`count` claims, `rate` of them a second, against a pool of that many; all are held until it is full again."""
    await until(lambda: _at_least(side.ready, pool), f"{side.name}: {pool} are ready")
    rated = Rated(count)
    before, began = await kube.writes(), time.perf_counter()
    await asyncio.gather(*(_one(side, began + number / rate, rated) for number in range(count)))
    rated.load = os.getloadavg()[0]
    await until(lambda: _at_least(side.ready, pool), f"{side.name}: {pool} are ready again")
    after = await kube.writes()
    await close_all(side, rated.held)
    await until(lambda: _at_most(kube, side, pool), f"{side.name}: all but {pool} pods are gone")
    rated.claiming, rated.ending = after - before, await kube.writes() - after
    return rated


async def at_once(side: Side, count: int) -> Rated:
    """All claims at the same moment."""
    rated, began = Rated(count), time.perf_counter()
    await asyncio.gather(*(_one(side, began, rated) for _ in range(count)))
    rated.load = os.getloadavg()[0]
    return rated


async def close_all(side: Side, held: Sequence[Held]) -> None:
    """Gives all back."""
    gate = asyncio.Semaphore(_CLOSING)

    async def close(one: Held) -> None:
        async with gate:
            await side.close(one)

    await asyncio.gather(*map(close, held))


async def until(probe: Callable[[], Awaitable[bool]], what: str, seconds: float = _PATIENCE) -> None:
    """Asks twice a second.

    Raises:
        TimeoutError: it did not come.
    """
    end = time.monotonic() + seconds
    while not await probe():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        await asyncio.sleep(0.5)


async def _one(side: Side, due: float, rated: Rated) -> None:
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    try:
        held = await side.claim()
    except ClaimError as error:
        rated.failures[str(error)] += 1
        return
    rated.seconds.append(time.perf_counter() - due)
    rated.warm += held.warm
    rated.held.append(held)


async def _at_least(ready: Callable[[], Awaitable[int]], wanted: int) -> bool:
    return await ready() >= wanted


async def _at_most(kube: Kube, side: Side, wanted: int) -> bool:
    return await kube.count(f"/api/v1/namespaces/{side.namespace}/pods") <= wanted
