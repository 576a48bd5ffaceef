"""Handles SIGTERM: the pod ends within its grace period.

While a step is computed, the signal only raises a flag: the step ends, a checkpoint is written, training stops.
Where the trainer merely waits (for rollouts, for a weight sync, for servers), waiting on would eat the grace period:
there the signal raises at once.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gymtrain_trainer.errors import InterruptedBySignal


class StopSignal:
    """The flag, and the places where it raises."""

    def __init__(self) -> None:
        self.requested = False
        self._waits = 0  # depth of waiting(); only the main thread counts

    def install(self) -> None:
        """Takes over SIGTERM and SIGINT; main thread only."""
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait of the main thread that a signal should end.

        Raises:
            InterruptedBySignal: the signal came, before or meanwhile.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.check()
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1

    def check(self) -> None:
        """Raises InterruptedBySignal where the signal came."""
        if self.requested:
            raise InterruptedBySignal("SIGTERM: the pod is asked to stop")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if self._waits:
            self.check()
