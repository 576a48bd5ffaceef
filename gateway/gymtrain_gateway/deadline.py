"""The time that one call has."""

import time
from dataclasses import dataclass

from gymtrain_gateway.errors import TooLateError


@dataclass(frozen=True)
class Deadline:
    """A point in time; waiting, tries and vLLM's work all happen before it."""

    at: float  # time.monotonic()
    seconds: float  # that the call had at first

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """From now."""
        return cls(time.monotonic() + seconds, seconds)

    def left(self) -> float:
        """Seconds left.

        Raises:
            TooLateError: none is.
        """
        seconds = self.at - time.monotonic()
        if seconds <= 0:
            raise TooLateError(f"no answer within {self.seconds:.0f} s (spec.gateway.timeoutSeconds)")
        return seconds
