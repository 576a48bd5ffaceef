"""One command at a time changes the cluster: two would undo each other's work."""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from contextlib import contextmanager

from dev.report import say
from dev.settings import Settings


@contextmanager
def exclusive(settings: Settings) -> Generator[None]:
    """Wait for other commands. The kernel drops the lock of one that dies."""
    settings.cache.mkdir(parents=True, exist_ok=True)
    with (settings.cache / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another dev command to end …")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
