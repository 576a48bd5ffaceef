"""Stopping without dropping what is in flight."""

import asyncio
from contextlib import suppress

MIN_SECONDS = 3.0  # endpoints of a Service follow a pod's deletion with a delay
MAX_SECONDS = 25.0  # below Kubernetes' default terminationGracePeriodSeconds of 30


class CallDrain:
    """What is in flight, and whether the server may stop."""

    def __init__(self, least: float = MIN_SECONDS, most: float = MAX_SECONDS) -> None:
        self._least = least
        self._most = most
        self._began = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.in_flight = 0

    @property
    def draining(self) -> bool:
        """Whether SIGTERM came."""
        return self._began.is_set()

    def begin(self) -> None:
        """SIGTERM came."""
        self._began.set()

    def request_started(self) -> None:
        """A request came."""
        self.in_flight += 1
        self._idle.clear()

    def request_ended(self) -> None:
        """A request was answered, or its client went away."""
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()

    async def wait(self) -> None:
        """Returns when the server may stop."""
        await self._began.wait()
        await asyncio.sleep(self._least)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._most - self._least):
                await self._idle.wait()
