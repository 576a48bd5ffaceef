"""Errors of the client, and which of the API server's answers become which. Their text is the API server's own.

KubeError
├── AccessError        there is no way to the API server: no ServiceAccount, no kubeconfig, or none that can be used
├── NotFoundError      no such object, or no such kind
├── ConflictError      the object is no longer what it was, or its name is taken: read it again
├── ExpiredError       that place in the history is gone: list again
├── RejectedError      the object is refused, for good (it is invalid) or for now (admission, a quota, a missing right)
└── UnreachableError   no usable answer in time: try again later
"""

import json
import re
from contextlib import suppress

_LONGEST_MESSAGE = 2000
_LONGEST_RETRY_AFTER = 300.0  # seconds
# Server-side apply says with HTTP 500 that an object doesn't fit its schema (kubernetes#122480): an unknown field, a
# list that is none, a name twice in `env`, a quantity that is none.
_UNFIT = ("failed to create typed patch object", "failed to convert new object")
# What admission denies has whatever code a webhook or a policy gives it (422 where a policy gives none). Quotas, limit
# ranges and Pod Security answer 403.
_DENIED = re.compile(
    r"admission webhook \".+?\" denied the request|policy '.+?'( with binding '.+?')? denied request", re.IGNORECASE
)
_OVER_QUOTA = "exceeded quota"
# A POST's 409 with another reason is about another object: quotas are counted in one that others write too.
_TAKEN = ("AlreadyExists", "")


class KubeError(Exception):
    """The API server refused a request, or didn't answer."""


class AccessError(KubeError):
    """There is no usable configuration of the access to an API server."""


class NotFoundError(KubeError):
    """There is no such object."""


class ConflictError(KubeError):
    """The object is no longer the one that was read, or its name is taken."""


class ExpiredError(KubeError):
    """The resourceVersion, or the token of a list, is too old."""


class RejectedError(KubeError):
    """The API server doesn't accept the object.

    Attributes:
        final: True where the object is invalid; False for what may pass without another object: a quota, what
            admission denies, a right that is missing.
        over_quota: whether it is refused because a quota is used up.
    """

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final
        self.over_quota = not final and _OVER_QUOTA in message


class UnreadLogError(KubeError):
    """The node has no log of a container that it knows: its runtime doesn't answer just now, or has removed it."""


class UnreachableError(KubeError):
    """The API server gave no usable answer.

    Attributes:
        retry_after: seconds after which it wants to be asked again; None where it said nothing about that.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def error_of(
    method: str, path: str, status: int, body: bytes, *, retry_after: str = "", tests: bool = False
) -> KubeError:
    """The error of an answer that isn't what was asked for.

    Args:
        retry_after: the header Retry-After.
        tests: whether the request was a JSON patch, of which 422 says that one of its tests failed.
    """
    text, reason = body.decode(errors="replace"), ""
    with suppress(ValueError, AttributeError):
        said = json.loads(text)
        text, reason = str(said.get("message") or "") or text, str(said.get("reason") or "")
    message = text[:_LONGEST_MESSAGE] or f"{method} {path}: HTTP {status}"
    if _DENIED.search(message):
        return RejectedError(message, final=False)
    match status:
        case 404:
            return NotFoundError(message)
        case 409 if method != "POST" or reason in _TAKEN:
            return ConflictError(message)
        case 410:
            return ExpiredError(message)
        case 422 if tests:
            return ConflictError(message)
        case 400 | 422:
            return RejectedError(message, final=True)
        case 403:
            return RejectedError(message, final=False)
        case 500 if message.startswith(_UNFIT):
            return RejectedError(message, final=True)
        case _:
            # The API server gives seconds; a date is a proxy's.
            pause = min(float(retry_after), _LONGEST_RETRY_AFTER) if retry_after.isdecimal() else None
            return UnreachableError(f"{method} {path}: HTTP {status}: {message}", retry_after=pause)
