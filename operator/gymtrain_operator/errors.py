"""Errors of the operator.

OperatorError
├── ClusterError            the API server's answer, translated where it is received
│   ├── NotFoundError       no such object
│   ├── ConflictError       the object changed meanwhile: observe again
│   ├── RejectedError       the API server refuses the object for good (it is invalid) or for now (admission, quota)
│   └── UnreachableError    no answer in time, or 429 and 5xx: try again later
├── ForeignObjectError      a name of ours is taken by an object of somebody else
└── ProbeError              a pod of a run didn't answer, or not as agreed
    └── OversizedAnswerError    it answers without end
"""


class OperatorError(Exception):
    """Base of every error that this package raises."""


class ClusterError(OperatorError):
    """The API server refused a request."""


class NotFoundError(ClusterError):
    """There is no such object."""


class ConflictError(ClusterError):
    """The object is no longer the one that was read."""


class RejectedError(ClusterError):
    """The API server doesn't accept the object.

    Attributes:
        final: True where the object is invalid; False for what may pass without another object: a quota, what
            admission denies, a right that is missing.
    """

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final


class UnreachableError(ClusterError):
    """The API server gave no usable answer.

    Attributes:
        retry_after: seconds after which it wants to be asked again; None where it said nothing about that.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ForeignObjectError(OperatorError):
    """An object that isn't the run's has a name that the run needs."""


class ProbeError(OperatorError):
    """A pod's HTTP answer is missing or no document that we know."""


class OversizedAnswerError(ProbeError):
    """A pod's HTTP answer is longer than any that it should give."""
