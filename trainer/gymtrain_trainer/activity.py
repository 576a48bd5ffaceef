"""Where the trainer's main thread spends its time, for the watchdog and the step's log line."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class Doing(StrEnum):
    """What the main thread does."""

    ROLLOUTS = "waiting for rollouts"
    SYNC = "in weight sync"
    SAVE = "writing a checkpoint"
    STEP = "in the training step"  # and all else, such as logging


class Activity:
    """Seconds by kind since the last mark. Written by the main thread, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spent = dict.fromkeys(Doing, 0.0)
        self._now = Doing.STEP
        self._since = time.monotonic()
        self.marked_at = self._since

    @contextmanager
    def doing(self, what: Doing) -> Iterator[None]:
        """Around something that isn't the training step."""
        before = self._switch(what)
        try:
            yield
        finally:
            self._switch(before)

    def mark(self) -> None:
        """A step ended: the account begins at zero."""
        with self._lock:
            self._spent = dict.fromkeys(Doing, 0.0)
            self._since = self.marked_at = time.monotonic()

    def spent(self) -> dict[Doing, float]:
        """Seconds since the mark, by kind."""
        with self._lock:
            return self._spent | {self._now: self._spent[self._now] + time.monotonic() - self._since}

    def _switch(self, what: Doing) -> Doing:
        with self._lock:
            now, before = time.monotonic(), self._now
            self._spent[before] += now - self._since
            self._now, self._since = what, now
            return before
