"""Writes that nobody waits for give way: the longer those take that somebody waits for, the fewer run at once.

On a control plane that has reached its limit, each pod made ahead costs the claims of that moment several writes more:
the scheduler's, the kubelet's, and all their watches.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

_SLOW_SECONDS = 0.05  # of a write that somebody waits for
_QUIET_SECONDS = 1.0  # without such a write: nobody to give way to
_LOOK_SECONDS = 0.1  # time passes without a write's end


class Yielding:
    """Turns for writes in the background. At least one is always under way, so that a pool is never left empty."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._limit = float(most)
        self._slow = False
        self._last = -_QUIET_SECONDS
        self._under_way = 0
        self._queue = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One write, first come, first served."""
        async with self._queue:
            while self._under_way >= self.allowed():
                self._freed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._freed.wait()
            self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._freed.set()

    def urgent_took(self, seconds: float) -> None:
        """A write that somebody waited for has ended."""
        self._last = self._clock()
        self._slow = self._slow or seconds > _SLOW_SECONDS
        step = self._limit / 2 if seconds > _SLOW_SECONDS else self._limit + 0.25
        self._limit = min(float(self._most), max(1.0, step))

    def allowed(self) -> int:
        """How many may be under way now."""
        self._forget_when_quiet()
        return int(self._limit)

    def pressed(self) -> bool:
        """Whether writes that somebody waits for were slow, and there have been such writes ever since."""
        self._forget_when_quiet()
        return self._slow

    def _forget_when_quiet(self) -> None:
        if self._clock() - self._last > _QUIET_SECONDS:
            self._limit, self._slow = float(self._most), False
