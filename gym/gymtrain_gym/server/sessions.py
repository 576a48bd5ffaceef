"""Refuses to score a rollout whose session this process does not hold.

A resources server with sessions keeps their state in memory. When its pod is replaced, or when a request
reaches another replica, upstream's servers answer with an error text that the agent feeds to the model, and
the rollout ends with a low reward that says nothing about the policy. Here the request that scores
(/verify, or /step of Gymnasium environments) is answered with 409 instead: the agent's /run fails, and the trainer
rolls out again.

A session is known where this process issued its cookie. Requests without a cookie pass: scoring
without a session is upstream's stateless mode.
"""

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections import OrderedDict

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SCORING_PATHS = ("/verify", "/step")
KEPT_SESSIONS = 500_000  # the oldest are forgotten beyond; 40 MB


class SessionGuard:
    """ASGI middleware for the server `name`, around upstream's session middleware."""

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app = app
        self._cookie_suffix = f"___{name}"  # upstream's cookie is CLASS___NAME
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
                "or the request went to another replica. Roll out again."
            )
            await JSONResponse({"detail": text}, status_code=409)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _session_of(self, header: str) -> str | None:
        """Session id in a Cookie header, or in a Set-Cookie header."""
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


def session_id(cookie: str) -> str | None:
    """Session id of a cookie of Starlette's SessionMiddleware: base64(JSON).timestamp.signature."""
    try:
        payload = json.loads(b64decode(cookie.strip('"').partition(".")[0]))
    except (Base64Error, ValueError):
        return None
    found = payload.get("session_id") if isinstance(payload, dict) else None
    return found if isinstance(found, str) else None
