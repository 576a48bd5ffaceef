"""The broker's time. Leases stand on pods in seconds since the epoch, so that the next broker understands them; but a
clock that somebody sets while sandboxes run must not end them all at once, or none of them ever.
"""

import time
from collections.abc import Callable


def steady(
    wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Seconds since the epoch, as the clock says now, counted on from here by the monotonic clock."""
    offset = wall() - monotonic()
    return lambda: offset + monotonic()
