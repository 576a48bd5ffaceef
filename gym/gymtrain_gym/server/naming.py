"""Puts this server's name into the errors that it answers.

NeMo Gym's servers pass an error on with the name of the server that called, never of the one that failed (see
gymtrain_trainer/rollouts/inner_error.py, which reads it). Only routes whose errors end the rollout are touched: what a
tool's route answers goes to the model as it is.
"""

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ROUTES = frozenset({"/run", "/v1/responses", "/v1/chat/completions", "/seed_session", "/verify", "/reset", "/step"})
MAX_BYTES = 8 * 1024 * 1024  # of an error that is looked at; larger ones go out as they are
_PASSED_ON = "Hit an exception in "  # NeMo Gym's own words: somebody else's error


class NamedErrors:
    """ASGI middleware for the server `name`, around all others."""

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app = app
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in ROUTES:
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
            too_large = _size(held) > MAX_BYTES
            if message.get("more_body") and not too_large:
                return
            answer, held = held, []
            for one in answer if too_large else named(answer, self._name):
                await send(one)

        await self._app(scope, receive, send_named)


def named(answer: list[Message], name: str) -> list[Message]:
    """A whole error with the server's name in it, where its form is one of NeMo Gym's or FastAPI's."""
    try:
        body = json.loads(b"".join(message.get("body", b"") for message in answer))
    except ValueError:
        return answer
    changed: Any
    if isinstance(body, str) and not body.startswith(_PASSED_ON):
        changed = f"{_PASSED_ON}{name}: {body}"
    elif isinstance(body, dict) and "detail" in body:
        changed = {"server": name, **body, "detail": _short(body["detail"])}
    else:
        return answer
    text = json.dumps(changed).encode()
    start = answer[0]
    headers = [(key, value) for key, value in start["headers"] if key.lower() != b"content-length"]
    start = {**start, "headers": [*headers, (b"content-length", str(len(text)).encode())]}
    return [start, {"type": "http.response.body", "body": text}]


def _short(detail: Any) -> Any:
    """FastAPI's account of a refused body, without the body. That is the whole row, and each server that passes the
    error on escapes it once more: what matters would be cut off."""
    if not isinstance(detail, list):
        return detail
    return [
        {key: value for key, value in one.items() if key != "input"} if isinstance(one, dict) else one for one in detail
    ]


def _size(answer: list[Message]) -> int:
    return sum(len(message.get("body", b"")) for message in answer)
