"""Checks whether a group was sampled only from this run's weights, by asking vLLM before and after each group.

A vLLM that restarts holds weights that aren't this run's, but still answers. Its readiness probe keeps it
out of the Service, but the news takes a moment to reach every node; this check closes that gap.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from gymtrain_trainer.errors import AgentError

type Versions = dict[str, str | None]  # weight version by vLLM server; None if it didn't answer


_ASK_SECONDS = 60.0  # of one question to all servers


@dataclass(frozen=True)
class Look:
    """The servers at one moment, and how many were brought back to the run's weights so far."""

    versions: Versions
    repairs_before: int  # counted before the servers were asked
    repairs_after: int  # counted after it


class WeightState(Protocol):
    """What the guard asks; weight sync has it."""

    async def look(self) -> Look:
        """What each vLLM server holds now."""
        ...


@dataclass(frozen=True)
class Snapshot:
    """A look, and when it was asked for."""

    look: Look
    asked_at: float  # time.monotonic() before the question

    @property
    def versions(self) -> Versions:
        """What each server held."""
        return self.look.versions


class WeightGuard:
    """Takes snapshots. Groups that end together share one question, however many they are."""

    def __init__(self, state: WeightState, verdict: Callable[[Versions, Versions], str | None]) -> None:
        """`verdict(before, after)`: None, or why a group between the two can't be used."""
        self._state = state
        self._verdict = verdict
        self._running: asyncio.Task[Snapshot] | None = None
        self._next: asyncio.Task[Snapshot] | None = None
        self._last: Snapshot | None = None

    async def before(self, max_age: float = 1.0) -> Snapshot:
        """A snapshot from before now. A little age only makes the checked span longer."""
        if self._last is not None and time.monotonic() - self._last.asked_at < max_age:
            return self._last
        return await self.fresh()

    async def fresh(self) -> Snapshot:
        """A snapshot whose question was asked after this call.

        Raises:
            AgentError: the servers' versions weren't known before the deadline.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._ask(self._running))
        return await asyncio.shield(self._next)

    async def reason_to_discard(self, before: Snapshot) -> str | None:
        """None where everything sampled since `before` came from this run's weights, else the reason."""
        after = await self.fresh()
        for moment, snapshot in (("started", before), ("ended", after)):
            if not any(snapshot.versions.values()):
                return f"no vLLM server said which weights it holds when the group {moment}"
        if after.look.repairs_after != before.look.repairs_before:
            return "a vLLM server lost this run's weights meanwhile and got them back"
        return self._verdict(before.versions, after.versions)

    async def _ask(self, earlier: Awaitable[Snapshot] | None) -> Snapshot:
        if earlier is not None:  # its question may be older than our callers
            await asyncio.wait([asyncio.ensure_future(earlier)])
        self._running, self._next = self._next, None
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                look = await self._state.look()
        except TimeoutError:
            raise AgentError(f"the vLLM servers' weight versions weren't known within {_ASK_SECONDS:g} s") from None
        self._last = Snapshot(look, asked_at)
        return self._last
