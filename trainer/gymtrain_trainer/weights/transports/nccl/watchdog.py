"""The deadline of a collective. NCCL itself waits for ever, and so would the run."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gymtrain_api.wiring import ExitCode

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 60.0  # between the abort and the end of the process


@contextmanager
def deadline(
    seconds: float, abort: Callable[[str], None], what: str, end: Callable[[int], None] = os._exit
) -> Iterator[None]:
    """Calls `abort` from a thread of its own once `seconds` are over; ends the process where that doesn't help."""
    reason = f"{what} took longer than {seconds:.0f} s (spec.weightSync.timeoutSeconds)"

    def last_resort() -> None:
        logger.critical("%s and could not be aborted: this process ends, so that a new attempt can start", reason)
        logging.shutdown()
        end(int(ExitCode.RETRY))

    timers = [threading.Timer(seconds, abort, [reason]), threading.Timer(seconds + _GRACE_SECONDS, last_resort)]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
