"""Errors of the command line.

CliError
├── RunNotFoundError     no such run, or no such kind: the operator isn't installed
├── WatchDeadlineError   the run didn't end in the time given
└── NoStepsError         the trainer's logs hold no finished step yet
"""


class CliError(Exception):
    """Base of what the command line reports without a traceback; the message names the next step."""


class RunNotFoundError(CliError):
    """The run isn't there."""


class WatchDeadlineError(CliError):
    """The run didn't end in time."""


class NoStepsError(CliError):
    """There is nothing to draw yet."""
