"""Errors of the gateway.

GatewayError
├── StartError           it can't start: run.json is wrong
│   └── PortError        it can't listen on its port
└── CallError            one call can't be answered; `status` and the text go to the client
    ├── BadCallError     the client's request can't be served: 400
    ├── MissingRouteError  the vLLM pod lacks a route that this needs: 501
    ├── NoPodError       no vLLM pod could take the call before its deadline: 503
    ├── TooLateError     the deadline passed while a pod worked on it: 500
    ├── RefusedError     vLLM answered 4xx: its status and body go to the client as they are
    └── PodFailedError   a pod died or answered 5xx; tried elsewhere first: 500

NeMo Gym's model servers repeat a call that was answered 429, 502, 503 or 504 without end, and one that was answered
500 twice. So only what waiting helps is a 503. A call that ran out of time or whose pod died would do so again, for
ever: it is a 500, and `kind` tells the client why.
"""

from http import HTTPStatus


class GatewayError(Exception):
    """Base: its text is meant for the user."""


class StartError(GatewayError):
    """The gateway can't start."""


class PortError(StartError):
    """The port can't be bound; a later try may do."""


class CallError(GatewayError):
    """One call can't be answered."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "InternalServerError"  # `type` in the document that the client gets


class BadCallError(CallError):
    """No pod can serve the request."""

    status = HTTPStatus.BAD_REQUEST
    kind = "BadRequest"


class MissingRouteError(CallError):
    """A route of vLLM is not there."""

    status = HTTPStatus.NOT_IMPLEMENTED
    kind = "NotImplemented"


class NoPodError(CallError):
    """No pod could take the call in time."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    kind = "ServiceUnavailable"


class TooLateError(CallError):
    """A pod had the call, but didn't answer in time."""

    kind = "GatewayTimeout"


class RefusedError(CallError):
    """vLLM's own 4xx."""

    def __init__(self, status: int, body: bytes, content_type: str) -> None:
        super().__init__(body.decode(errors="replace"))
        self.code = status
        self.body = body
        self.content_type = content_type


class PodFailedError(CallError):
    """The pod, not the request, is the reason; another pod may do better."""

    kind = "BadGateway"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason  # label of the metric: connection, status, aborted
