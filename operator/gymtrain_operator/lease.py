"""The times of the leader's Lease, and the fence that they put around its writes.

A leader that was stopped, or cut off, doesn't know that another acts by now. So it may write for a part of the Lease's
time alone, counted from when it asked for the last renewal that it got. Whoever takes over counts all of that time,
from when it saw that renewal, which is later. Each uses its own clock.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from gymtrain_operator.errors import LostLeaseError


@dataclass(frozen=True)
class LeaseTimes:
    """Times of the election, in seconds, by the names of Kubernetes' own components.

    The defaults are twice client-go's: where nobody stands by, a leader whose node has no core to spare must not lose
    the Lease, and restart, for that alone.

    Attributes:
        duration: how long others leave a Lease alone that isn't renewed. Leases hold whole seconds.
        renew_deadline: how long the leader acts without a renewal.
        retry_period: between two tries to renew it, or to get it.
    """

    duration: int = 30
    renew_deadline: float = 20.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        """Checks them.

        Raises:
            ValueError: they don't leave time for what they are for. The text names the flags.
        """
        if not self.duration > self.renew_deadline > self.retry_period > 0:
            raise ValueError(
                f"--leader-elect-lease-duration={self.duration:g} must be longer than --leader-elect-renew-deadline="
                f"{self.renew_deadline:g}, and that longer than --leader-elect-retry-period={self.retry_period:g}, "
                "which must be above 0: others wait until the leader has given up, and it tries more than once before"
            )

    @property
    def margin(self) -> float:
        """Between the last moment at which the leader begins to write and the first at which another may."""
        return self.duration - self.renew_deadline


class Fence:
    """Until when this process may write. For ever, unless there is an election."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = math.inf

    def close(self) -> None:
        """Lets no write pass, until `open_until`."""
        self._until = -math.inf

    def open_until(self, moment: float) -> None:
        """Lets writes pass until that moment of the clock."""
        self._until = moment

    def check(self) -> None:
        """Called before each write.

        Raises:
            LostLeaseError: another replica may act by now.
        """
        late = self._clock() - self._until
        if late >= 0:
            since = f"{late:.1f} s ago" if math.isfinite(late) else "before it was acquired"
            raise LostLeaseError(f"a write was held back: the time to act under the Lease was over {since}")
