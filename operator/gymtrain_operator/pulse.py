"""Whether the event loop hangs, or only gets no CPU.

On a node whose cores are all taken a loop may stand still for a minute though nothing is wrong with it, and a restart
makes it worse: it begins with the imports. So silence isn't counted in seconds of the clock, but in seconds of CPU that
the loop had since its last beat, or could have had and didn't want:

    burning     the process used CPU all the time, and the loop didn't come round
    idle        this watcher wakes up on time, the process uses next to nothing, and the loop waits for something else
    starved     the watcher wakes up late, or the process uses all that it is given: only what it used counts
"""

import asyncio
import time
from collections.abc import Callable

HUNG_SECONDS = 45.0
"""The longest that one callback of the loop may compute or block. Nothing here takes more than a second or two."""

_TICK_SECONDS = 1.0
_LATE = 1.25  # of a tick: who is woken so late wasn't alone on the core
_IDLE = 0.02  # share of a core: the watcher's own work


class Pulse:
    """The loop's beat. `beat` is called in the loop, `tick` about once a second in another thread."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._cpu = cpu
        self._beats = 0
        self._counted = 0
        self._at, self._used = clock(), cpu()
        self.had = 0.0

    @property
    def hung(self) -> bool:
        """Whether the loop had its chance and didn't beat."""
        return self.had > HUNG_SECONDS

    def beat(self) -> None:
        """The loop came round."""
        self._beats += 1

    def tick(self) -> None:
        """Counts what the loop had since the tick before."""
        now, used = self._clock(), self._cpu()
        took, got = now - self._at, used - self._used
        self._at, self._used = now, used
        if self._beats != self._counted:
            self._counted, self.had = self._beats, 0.0
            return
        idle = took < _TICK_SECONDS * _LATE and got < took * _IDLE
        self.had += took if idle else got

    async def keep_beating(self) -> None:
        """Beats for as long as the loop goes round; to be run in it."""
        while True:
            self.beat()
            await asyncio.sleep(_TICK_SECONDS / 2)

    async def keep_ticking(self) -> None:
        """Ticks without end; to be run in a loop of another thread."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self.tick()
