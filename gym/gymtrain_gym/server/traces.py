"""Carries a rollout's trace through a NeMo Gym server, which forwards no headers itself.

```
traceparent ──► Traced (ASGI) ── context variable ──► upstream's code ──► NeMo Gym's aiohttp session ──► traceparent
```

A request in a trace opens a span, and each request that NeMo Gym's own client makes while it is answered names that
span as its caller: agents to themselves, to model and resources servers, and model servers to the gateway. Clients that
an environment brings itself do nothing of that: what they call has no part in the trace.
"""

from typing import Any

import aiohttp
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import gymtrain_tracing as tracing


class Traced:
    """Opens a span for each request that belongs to a trace. Around all other middlewares."""

    def __init__(self, app: ASGIApp, server: str, kind: str) -> None:
        """`server`, and its kind: agent, resources or model."""
        self._app = app
        self._attributes = {"gymtrain.server": server, "gymtrain.server.kind": kind}
        self._session: aiohttp.ClientSession | None = None  # that names callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with tracing.served(f"{scope['method']} {scope['path']}", Headers(scope=scope), self._attributes) as span:

            async def send_and_note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.answered(message["status"])
                await send(message)

            if tracing.headers():
                self._name_callers()
            await self._app(scope, receive, send_and_note)

    def _name_callers(self) -> None:
        """Makes NeMo Gym's client send `traceparent`, from the first request on that needs it."""
        from nemo_gym.server_utils import get_global_aiohttp_client

        session = get_global_aiohttp_client()
        if session is not self._session:
            session.trace_configs.append(naming_callers())
            self._session = session


def naming_callers() -> aiohttp.TraceConfig:
    """Hooks of an aiohttp session by which each request that it sends names the open span as its caller."""

    async def begin(session: aiohttp.ClientSession, context: Any, request: aiohttp.TraceRequestStartParams) -> None:
        request.headers.update(tracing.headers())

    config = aiohttp.TraceConfig()
    config.on_request_start.append(begin)
    config.freeze()
    return config
