"""Errors of the Python client and of the command line.

ClientError
├── UnavailableError     the API server doesn't answer, or not now
├── RefusedError         the API server refuses: rights, admission, an invalid object
├── RunNotFoundError     no such run, or no such kind: the operator isn't installed
├── RunFailedError       a run that was waited for failed
├── WatchDeadlineError   what was waited for didn't happen in the time given
├── NoStepsError         the trainer's logs hold no finished step yet
├── ManifestError        a file holds no GymTrainingRun
└── FolderError          the run keeps no files, or nobody can read them
    ├── FetchError       files can't be copied from it
    └── ReportError      no report can be made of it
"""


class ClientError(Exception):
    """Base of what the command line reports without a traceback; the message names the next step."""


class UnavailableError(ClientError):
    """The API server doesn't answer; a later call may succeed."""

    def __init__(self, what: str, reason: str) -> None:
        """`what` was being done, and `reason` is how it failed."""
        super().__init__(
            f"{what}: the API server doesn't answer: {reason}. Check it with `kubectl version`, then try again"
        )
        self.reason = reason


class RefusedError(ClientError):
    """The API server refuses; the same call will be refused again."""

    def __init__(self, what: str, code: int, said: str) -> None:
        """`what` was being done, and `said` is the server's own message."""
        super().__init__(f"{what}: HTTP {code}: {said}")
        self.code = code
        self.said = said


class RunNotFoundError(ClientError):
    """The run doesn't exist."""


class RunFailedError(ClientError):
    """The run failed."""


class WatchDeadlineError(ClientError):
    """It didn't happen in time."""


class NoStepsError(ClientError):
    """There is nothing to draw yet."""


class ManifestError(ClientError):
    """There is no run in the file."""


class FolderError(ClientError):
    """The run's folder can't be read."""


class FetchError(FolderError):
    """The files aren't there, didn't arrive whole, or would replace others."""


class ReportError(FolderError):
    """The program that reads the records failed, or isn't there."""
