"""Errors of the command line.

CliError
├── UnavailableError     the API server doesn't answer, or not now
├── RunNotFoundError     no such run, or no such kind: the operator isn't installed
├── WatchDeadlineError   the run didn't end in the time given
└── NoStepsError         the trainer's logs hold no finished step yet
"""


class CliError(Exception):
    """Base of what the command line reports without a traceback; the message names the next step."""


class UnavailableError(CliError):
    """The API server doesn't answer; a later call may succeed."""

    def __init__(self, what: str, reason: str) -> None:
        """`what` was being done, and `reason` is how it failed."""
        super().__init__(
            f"{what}: the API server doesn't answer: {reason}. Check it with `kubectl version`, then try again"
        )
        self.reason = reason


class RunNotFoundError(CliError):
    """The run doesn't exist."""


class WatchDeadlineError(CliError):
    """The run didn't end in time."""


class NoStepsError(CliError):
    """There is nothing to draw yet."""
