"""Asks for the run's token on all routes that change something: pausing, other weights, adapters, profiles.

vLLM has these routes for a network that trusts itself. Open stay the routes that only tell something, for operator,
gateway and probes, and those that generate. A route that isn't known to be one of these is closed, so that those of
later releases are.
"""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from gymtrain_vllm import environment
from gymtrain_vllm.errors import TokenError

type Message = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type App = Callable[[Message, Receive, Send], Awaitable[None]]

MIDDLEWARE = "gymtrain_vllm.control_guard.ControlGuard"

_READING = {"GET", "HEAD", "OPTIONS"}
_GENERATING = {
    "/v1/chat/completions",
    "/v1/chat/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions",
    "/v1/completions/render",
    "/inference/v1/generate",
    "/tokenize",
    "/detokenize",
}
_REFUSAL = b'{"error": "this route asks for the run\'s token: Authorization: Bearer TOKEN"}'


def read_token(file: Path) -> str:
    """Reads the token.

    Raises:
        TokenError: there is none, so that no control route could ever be used.
    """
    try:
        token = file.read_text().strip()
    except OSError as error:
        raise TokenError(f"can't read the run's token: {error}") from error
    if not token:
        raise TokenError(f"{file} is empty: it must hold the run's token")
    return token


class ControlGuard:
    """ASGI middleware."""

    def __init__(self, app: App, token: str | None = None) -> None:
        """`token` is that of the environment's file where it isn't given.

        Raises:
            TokenError: there is none.
        """
        if token is None:
            file = environment.run_token_file()
            if file is None:
                raise TokenError("the environment names no file with the run's token")
            token = read_token(file)
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers as the server does, or with 401."""
        if scope["type"] == "lifespan" or self._lets_in(scope):
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": _REFUSAL})
        return None

    def _lets_in(self, scope: Message) -> bool:
        if scope["type"] == "http" and (scope["method"] in _READING or scope["path"] in _GENERATING):
            return True
        said = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(said, self._expected)
