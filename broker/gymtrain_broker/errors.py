"""Errors of the broker.

BrokerError
├── StartError               it can't start: run.json, the token or the cluster's access is wrong
│   └── PortError            it can't listen on its port
└── CallError                one request can't be served; `status`, `code` and the text go to the client
    ├── BadRequestError      400
    ├── UnauthorizedError    401
    ├── UnknownError         404
    ├── ConflictingKeyError  409: the key belongs to another request
    ├── NotRunningError      409: the sandbox doesn't run
    ├── NeverError           422: no wait would help
    ├── QueueFullError       429
    ├── DaemonError          502: the sandbox's daemon didn't answer
    └── UnavailableError     503: the API server didn't take the write; asking again may help

What the API server answers are `gymtrain_kube.errors`.
"""

from http import HTTPStatus


class BrokerError(Exception):
    """Base: its text is meant for the user."""


class StartError(BrokerError):
    """The broker can't start."""


class PortError(StartError):
    """The port can't be bound; a later try may do."""


class CallError(BrokerError):
    """One request can't be served."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    code = "internal"


class BadRequestError(CallError):
    """The request is malformed."""

    status = HTTPStatus.BAD_REQUEST
    code = "bad_request"


class UnauthorizedError(CallError):
    """The run's token is missing or wrong."""

    status = HTTPStatus.UNAUTHORIZED
    code = "unauthorized"


class UnknownError(CallError):
    """There is no such sandbox."""

    status = HTTPStatus.NOT_FOUND
    code = "not_found"


class ConflictingKeyError(CallError):
    """The key has been used for something else."""

    status = HTTPStatus.CONFLICT
    code = "key_reused"


class NotRunningError(CallError):
    """The sandbox isn't running."""

    status = HTTPStatus.CONFLICT
    code = "not_running"


class NeverError(CallError):
    """The request can never succeed."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    code = "never"


class QueueFullError(CallError):
    """Too many requests wait."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "queue_full"


class DaemonError(CallError):
    """The daemon in a sandbox gave no usable answer."""

    status = HTTPStatus.BAD_GATEWAY
    code = "daemon"


class UnavailableError(CallError):
    """The API server is out of reach."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "unavailable"
