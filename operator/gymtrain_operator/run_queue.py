"""The queue of runs to look at: each run once, never two workers on the same run.

An event for a run that waits already is the same work; one for a run that is being worked on makes it
wait again. A delay is a promise to look again, and the soonest one counts.
"""

import asyncio
from collections import deque
from contextvars import Context

from gymtrain_operator import metrics

type RunKey = tuple[str, str]
"""Namespace and name of a run."""


class RunQueue:
    """Runs that wait for a worker. Not thread-safe: one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[RunKey] = deque()
        self._listed: set[RunKey] = set()
        self._active: set[RunKey] = set()
        self._again: set[RunKey] = set()
        self._timers: dict[RunKey, asyncio.TimerHandle] = {}
        self._available = asyncio.Event()

    def add(self, key: RunKey, *, after: float = 0.0) -> None:
        """Queues a run to be looked at within `after` seconds."""
        if after > 0:
            self._add_later(key, after)
            return
        timer = self._timers.pop(key, None)
        if timer:
            timer.cancel()
        if key in self._active:
            self._again.add(key)
        elif key not in self._listed:
            self._listed.add(key)
            self._waiting.append(key)
            self._changed()

    async def take(self) -> RunKey:
        """Waits for the next run, and takes it; `finish` must follow."""
        while not self._waiting:
            self._available.clear()
            await self._available.wait()
        key = self._waiting.popleft()
        self._listed.discard(key)
        self._active.add(key)
        self._changed()
        return key

    def finish(self, key: RunKey) -> None:
        """Notes that the worker is done with the run."""
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _add_later(self, key: RunKey, after: float) -> None:
        loop = asyncio.get_running_loop()
        old = self._timers.get(key)
        if old and old.when() <= loop.time() + after:
            return
        if old:
            old.cancel()
        # A timer keeps the context in which it is set, and kopf's has the whole object in it: 40 KB for each run.
        self._timers[key] = loop.call_later(after, self._fire, key, context=Context())

    def _fire(self, key: RunKey) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _changed(self) -> None:
        metrics.QUEUE.set(len(self._waiting))
        self._available.set()
