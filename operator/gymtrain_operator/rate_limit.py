"""How often the API server is asked: as many requests a second as are allowed, and none while it wants to rest.

API Priority and Fairness turns away the requests of a client that asks for more than its share, with HTTP 429 and
Retry-After. Whoever is turned away waits; so do all others, which would be turned away as well.
"""

import asyncio
import time
from collections.abc import Callable

# A run takes some 50 requests until it trains; API Priority and Fairness is what guards the API server.
DEFAULT_QPS, DEFAULT_BURST = 300.0, 600

_LONGEST_REST = 30.0  # seconds of a Retry-After that all requests wait; a run of which one failed waits all of it


class RateLimit:
    """A token bucket. Waiters take their turns first come, first served."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Allows `per_second` requests a second in the long run, and `burst` at once after a quiet time."""
        self._interval = 1.0 / per_second
        self._burst = burst
        self._clock = clock
        # When the bucket is full again if nobody takes from it: each token moves it on by an interval.
        self._full_at = clock()
        self._rest_until = 0.0

    async def turn(self) -> float:
        """Waits until a request may be sent. Returns the seconds that this took."""
        began = self._clock()
        self._full_at = max(self._full_at, began) + self._interval
        due = self._full_at - self._interval * self._burst
        while True:
            now = self._clock()
            wait = max(due, self._rest_until) - now
            if wait <= 0:
                return now - began
            await asyncio.sleep(wait)  # meanwhile the API server may want more rest

    def rest(self, seconds: float) -> None:
        """Notes that the API server wants to be left alone for a time."""
        self._rest_until = max(self._rest_until, self._clock() + min(seconds, _LONGEST_REST))
        # Those who come meanwhile don't all go at its end.
        self._full_at = max(self._full_at, self._rest_until + self._interval * (self._burst - 1))
