"""Ends a server of several workers when one of them refused a call.

Such a server asks all its workers and reads one answer of each. It stops reading at the first error, so that the
answers behind it are taken for those of the next call, and so on for ever (vllm-project/vllm#57846, open in 0.32): a
worker that fails later is noticed one call too late, when the version that it lacks has its label already. Nothing from
outside brings the answers into step again, so the server ends. Its container is started anew, and the trainer sends it
the weights.

vLLM puts this class around its application: `--middleware gymtrain_vllm.worker_desync.EndsOutOfStep`.
"""

import os
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

type Message = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type App = Callable[[Message, Receive, Send], Awaitable[None]]

ASKS_WORKERS = frozenset(
    {
        "/init_weight_transfer_engine",
        "/shutdown_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
    }
)
_EXIT_OUT_OF_STEP = 72
_LAST_WORDS_SECONDS = 0.2  # in which the caller gets the error


class EndsOutOfStep:
    """ASGI middleware."""

    def __init__(self, app: App, end: Callable[[], None] | None = None) -> None:
        """`end` ends the server, soon."""
        self._app = app
        self._end = end or _end_soon

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers as the server does."""
        if scope["type"] != "http" or scope["path"] not in ASKS_WORKERS:
            return await self._app(scope, receive, send)
        refused = True  # where the server raises, something outside of it answers with 500

        async def noted(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                # Below 500 the request was wrong, and no worker was asked.
                refused = message["status"] >= 500
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            if refused:
                print(
                    f"gymtrain: POST {scope['path']} failed, and this server has several workers: their answers are "
                    "out of step from now on (vllm-project/vllm#57846). Ending it, so that it is started anew",
                    flush=True,
                )
                self._end()
        return None


def _end_soon() -> None:
    timer = threading.Timer(_LAST_WORDS_SECONDS, os._exit, (_EXIT_OUT_OF_STEP,))
    timer.daemon = True
    timer.start()
