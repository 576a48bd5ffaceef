"""Marks the answers of rollouts that lost their sandbox: their reward measures nothing.

The mark is that of newer releases of NeMo Gym: `mask_sample`, with a `failure_reason`. The trainer takes such an answer
for a rollout that failed, and rolls out again.
"""

import json
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gymtrain_gym.sandbox import lost_sandboxes

SCORING_PATHS = ("/run", "/verify")


class LossMask:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in SCORING_PATHS:
            await self._app(scope, receive, send)
            return
        held: list[Message] = []

        async def hold(message: Message) -> None:
            held.append(message)

        with lost_sandboxes.collecting() as lost:
            try:
                await self._app(scope, receive, hold)
            finally:  # an error has been answered before it is raised
                for message in masked(held, lost) if lost else held:
                    await send(message)


def masked(answer: Sequence[Message], lost: Sequence[str]) -> Sequence[Message]:
    """An answer with the mark, where it is a JSON object."""
    start = next((message for message in answer if message["type"] == "http.response.start"), None)
    try:
        body = json.loads(b"".join(message.get("body", b"") for message in answer))
    except ValueError:
        return answer
    if start is None or not isinstance(body, dict):
        return answer
    body |= {"mask_sample": True, "failure_reason": "; ".join(dict.fromkeys(lost))}
    text = json.dumps(body).encode()
    headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
    start = {**start, "headers": [*headers, (b"content-length", str(len(text)).encode())]}
    return [start, {"type": "http.response.body", "body": text}]
