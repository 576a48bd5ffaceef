"""Whose doing it is that a rollout failed, and what follows from it (spec.rollout.onFailure). Pure.

What makes a failure the policy's own, for which a reward of 0 may be right, has to be shown; all else is
infrastructure. In the order in which it is looked at:

| what happened | kind |
|---|---|
| no connection, a connection that broke, an answer without end or that isn't JSON | infrastructure |
| no answer before our deadline: of /run, of the generation or of /verify in mode Verify | timeout |
| no answer before our deadline: of /seed_session | infrastructure |
| an error of /seed_session, of the generation | infrastructure: nothing of the policy's is judged yet |
| 429, 502, 503, 504 | infrastructure: the server is away |
| an error of a model server, the gateway, vLLM, or an unknown server | infrastructure |
| an exception of an agent or a resources server that says that its time was up | timeout |
| one that says what it lacked: a connection, another server, a sandbox, files, memory, disk | infrastructure |
| any other exception of theirs | environment |
| an error that they answer by a status of their own, 400 or 500 | environment |
| another status: no credentials, route, session (409) or field of the row (422) | infrastructure |
| an answer whose reward isn't a number (rollouts/answer.py) | environment |
| an answer with mask_sample, without tokens, or of a generation that was cut off (same) | infrastructure |

An error that a server passed on counts as that of the server that raised it (rollouts/inner_error.py). A server of
NeMo Gym doesn't say which that is; ours do, as the launcher adds their name and kind. Where they don't, it is known
only of the server that we asked ourselves.
"""

import errno
import re
from enum import Enum
from typing import assert_never

from gymtrain_api.spec import FailureAction, OnFailure
from gymtrain_trainer.errors import FailureKind
from gymtrain_trainer.rollouts.inner_error import InnerError, ServerKind

_AWAY = frozenset({429, 502, 503, 504})
_OWN = frozenset({400, 500})  # statuses by which an environment refuses what the policy wrote
_CLASS = re.compile(r"(\w+)\(")  # of a repr
_TOO_LATE = re.compile(r"Timeout(Error|Exception|Expired)?$")
_NO_CONNECTION = re.compile(r"^(Connect|Connection|Pool)Timeout")  # aiohttp's, httpx', requests'
_CLOSED = "An unknown error occurred"  # what NeMo Gym says of what is no Exception: the server was ending
_OTHER_SERVER = re.compile(r"""\(['"](Server error '5|5\d\d Server Error|Client error '429|429 Client Error)""")
_OS_ERROR = re.compile(r"OSError\((\d+),")
_LACKING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_WITHOUT = frozenset(
    # of Python
    {"ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError"}
    | {"gaierror", "SSLError", "IncompleteRead", "RemoteDisconnected", "BlockingIOError"}
    # of aiohttp
    | {"ClientConnectionError", "ClientConnectorError", "ClientConnectorDNSError", "ClientConnectorSSLError"}
    | {"ClientOSError", "ServerConnectionError", "ServerDisconnectedError", "ClientPayloadError"}
    # of httpx, requests and urllib3
    | {"NetworkError", "ConnectError", "ReadError", "WriteError", "CloseError", "RemoteProtocolError"}
    | {"ProtocolError", "MaxRetryError", "NewConnectionError", "ChunkedEncodingError"}
    # of openai and litellm
    | {"APIConnectionError", "InternalServerError", "RateLimitError", "ServiceUnavailableError", "BadGatewayError"}
    # of the sandboxes
    | {"SandboxLostError", "SandboxUnavailableError", "SandboxCreateError", "SandboxSettingsError"}
    | {"BrokerRefusedError"}
)


class Call(Enum):
    """A request of a rollout, by its route."""

    ROLLOUT = "/run"
    SESSION = "/seed_session"
    GENERATION = "/v1/responses"
    VERDICT = "/verify"

    @property
    def server(self) -> ServerKind:
        """What is asked."""
        match self:
            case Call.ROLLOUT:
                return "agent"
            case Call.GENERATION:
                return "model"
            case Call.SESSION | Call.VERDICT:
                return "resources"
            case _:
                assert_never(self)

    @property
    def judges(self) -> bool:
        """What the policy wrote may be what it fails on."""
        return self in (Call.ROLLOUT, Call.VERDICT)


def kind_of_silence(call: Call) -> FailureKind:
    """Of a call that wasn't answered before its deadline."""
    return FailureKind.INFRASTRUCTURE if call is Call.SESSION else FailureKind.TIMEOUT


def kind_of_answer(call: Call, status: int, error: InnerError) -> FailureKind:
    """Of a call that was answered with an error; `status`: the answer's own."""
    if not call.judges or status in _AWAY:
        return FailureKind.INFRASTRUCTURE
    asked = not error.callers  # the error is that of the server that we asked
    server = error.server_kind or (call.server if asked else None)
    if server is None or server == "model":
        return FailureKind.INFRASTRUCTURE
    match error.form:
        case "exception":
            return _kind_of_exception(error.text)
        case "detail":
            own = (error.status or (status if asked else None)) in _OWN
            return FailureKind.ENVIRONMENT if own else FailureKind.INFRASTRUCTURE
        case "other":
            return FailureKind.INFRASTRUCTURE
        case _:
            assert_never(error.form)


def _kind_of_exception(text: str) -> FailureKind:
    """`text`: the repr of the exception."""
    found = _CLASS.match(text)
    name = found[1] if found else ""
    if _TOO_LATE.search(name) and not _NO_CONNECTION.match(name):
        return FailureKind.TIMEOUT
    number = _OS_ERROR.match(text)
    lacking = number is not None and int(number[1]) in _LACKING
    away = _NO_CONNECTION.match(name) or _OTHER_SERVER.search(text) or text.startswith(_CLOSED)
    if name in _WITHOUT or lacking or away:
        return FailureKind.INFRASTRUCTURE
    return FailureKind.ENVIRONMENT


def action_for(policy: OnFailure, kind: FailureKind) -> FailureAction:
    """What the run does about a failure of that kind."""
    match kind:
        case FailureKind.INFRASTRUCTURE:
            return policy.infrastructure
        case FailureKind.TIMEOUT:
            return policy.timeout
        case FailureKind.ENVIRONMENT:
            return policy.environment
        case _:
            assert_never(kind)
