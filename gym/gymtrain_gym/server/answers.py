"""Changes a server's answers so that a failed rollout is never taken for a bad one.

Three ASGI middlewares, each for errors that NeMo Gym's servers turn into an ordinary reward, or pass on without saying
whose they are. The trainer reads what they write, and rolls out again.

| middleware | what happened | answer |
|---|---|---|
| LossMask | the rollout lost its sandbox | the same, with `mask_sample` |
| SessionGuard | the rollout's session went with its pod | 409 instead of a reward |
| NamedErrors | the server failed | the same error, with the server's name and kind, and the status that it had |
"""

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gymtrain_gym.sandbox import lost_sandboxes

REWARD_PATHS = ("/run", "/verify")  # of answers that hold the rollout's reward
SCORING_PATHS = ("/verify", "/step")  # of a resources server with sessions; /step of Gymnasium environments
ERROR_PATHS = frozenset(
    {"/run", "/v1/responses", "/v1/chat/completions", "/seed_session", "/verify", "/reset", "/step"}
)
MAX_ERROR_BYTES = 8 * 1024 * 1024  # of an error that is looked at; larger ones go out as they are
KEPT_SESSIONS = 500_000  # the oldest are forgotten beyond; 40 MB
_PASSED_ON = "Hit an exception in "  # NeMo Gym's own words: someone else's error


class LossMask:
    """Marks the answers of rollouts that lost their sandbox: their reward measures nothing.

    The mark is that of newer releases of NeMo Gym: `mask_sample`, with a `failure_reason`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in REWARD_PATHS:
            await self._app(scope, receive, send)
            return
        held: list[Message] = []

        async def hold(message: Message) -> None:
            held.append(message)

        with lost_sandboxes.collecting() as lost:
            try:
                await self._app(scope, receive, hold)
            finally:  # an error has been answered before it is raised
                for message in _masked(held, lost) if lost else held:
                    await send(message)


class SessionGuard:
    """Refuses to score a rollout whose session this process does not hold. Around upstream's session middleware.

    A resources server with sessions keeps their state in memory. When its pod is replaced, or when a request reaches
    another replica, upstream's servers answer with an error text that the agent feeds to the model, and the rollout
    ends with a low reward that says nothing about the policy. Here the request that scores is answered with 409
    instead: the agent's /run fails.

    A session is known where this process issued its cookie. Requests without a cookie pass: scoring without a session
    is upstream's stateless mode.
    """

    def __init__(self, app: ASGIApp, server: str) -> None:
        self._app = app
        self._cookie_suffix = f"___{server}"  # upstream's cookie is CLASS___NAME
        self._known: OrderedDict[str, None] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        session = self._session_of(Headers(scope=scope).get("cookie", ""))
        if session is None:

            async def send_and_learn(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._learn(message)
                await send(message)

            await self._app(scope, receive, send_and_learn)
        elif scope["path"] in SCORING_PATHS and session not in self._known:
            text = (
                "this server does not hold the rollout's session: the pod that did was replaced, "
                "or the request went to another replica. Retry the rollout."
            )
            await JSONResponse({"detail": text}, status_code=409)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _session_of(self, header: str) -> str | None:
        """The session id in a Cookie header, or in a Set-Cookie header."""
        for name, value in cookie_parser(header).items():
            if name.endswith(self._cookie_suffix):
                return session_id(value)
        return None

    def _learn(self, message: Message) -> None:
        for name, value in message.get("headers", []):
            if name.lower() != b"set-cookie":
                continue
            session = self._session_of(value.decode("latin-1"))
            if session is not None:
                self._known[session] = None
                if len(self._known) > KEPT_SESSIONS:
                    self._known.popitem(last=False)


class NamedErrors:
    """Puts the server's name and kind into the errors that it answers. Around all others.

    NeMo Gym's servers pass an error on with the name of the server that called, never of the one that failed, and
    always with status 500; the trainer's `inner_error` reads all of it. Only routes whose errors end the rollout are
    touched: what a tool's route answers goes to the model as it is.
    """

    def __init__(self, app: ASGIApp, server: str, kind: str) -> None:
        """`kind`: agent, resources or model."""
        self._app = app
        self._server = server
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in ERROR_PATHS:
            await self._app(scope, receive, send)
            return
        held: list[Message] = []  # of an error, until it is whole

        async def send_named(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start" and message["status"] >= 400:
                held = [message]
                return
            if not held:
                await send(message)
                return
            held.append(message)
            too_large = sum(len(message.get("body", b"")) for message in held) > MAX_ERROR_BYTES
            if message.get("more_body") and not too_large:
                return
            answer, held = held, []
            for one in answer if too_large else _named(answer, self._server, self._kind):
                await send(one)

        await self._app(scope, receive, send_named)


def session_id(cookie: str) -> str | None:
    """The session id in a cookie of Starlette's SessionMiddleware: base64(JSON).timestamp.signature."""
    try:
        payload = json.loads(b64decode(cookie.strip('"').partition(".")[0]))
    except (Base64Error, ValueError):
        return None
    found = payload.get("session_id") if isinstance(payload, dict) else None
    return found if isinstance(found, str) else None


def _masked(answer: Sequence[Message], lost: Sequence[str]) -> Sequence[Message]:
    """An answer with the mark, where it is a JSON object."""
    body = _json(answer)
    if not isinstance(body, dict):
        return answer
    return _with_body(answer, body | {"mask_sample": True, "failure_reason": "; ".join(dict.fromkeys(lost))})


def _named(answer: Sequence[Message], server: str, kind: str) -> Sequence[Message]:
    """A whole error with its server in it, where its form is one of NeMo Gym's or FastAPI's."""
    body = _json(answer)
    if isinstance(body, str) and not body.startswith(_PASSED_ON):
        return _with_body(answer, f"{_PASSED_ON}{server} ({kind} server): {body}")
    if isinstance(body, dict) and "detail" in body:
        named = {"server": server, "server_kind": kind, "status": answer[0]["status"], **body}
        return _with_body(answer, named | {"detail": _without_input(body["detail"])})
    return answer


def _without_input(detail: Any) -> Any:
    """FastAPI's account of a refused body, without the body. That is the whole row, and each server that passes the
    error on escapes it once more: what matters would be cut off."""
    if not isinstance(detail, list):
        return detail
    return [
        {key: value for key, value in one.items() if key != "input"} if isinstance(one, dict) else one for one in detail
    ]


def _json(answer: Sequence[Message]) -> Any:
    """The body of a whole answer; None if it is no JSON."""
    try:
        return json.loads(b"".join(message.get("body", b"") for message in answer))
    except ValueError:
        return None


def _with_body(answer: Sequence[Message], body: Any) -> Sequence[Message]:
    """The answer with another body; itself where it never began."""
    start = next((message for message in answer if message["type"] == "http.response.start"), None)
    if start is None:
        return answer
    text = json.dumps(body).encode()
    headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
    start = {**start, "headers": [*headers, (b"content-length", str(len(text)).encode())]}
    return [start, {"type": "http.response.body", "body": text}]
