"""An API server whose answers a test gives, and that notes what it was asked."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web
from aiohttp.test_utils import TestServer

from gymtrain_kube.access import Access

MIB = 1 << 20

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The document that was sent."""
        return json.loads(self.body)


class ScriptedApi:
    """Answers with an empty object until it is told otherwise; use as a context manager."""

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        self.handler: Handler = self._next
        self._documents: list[Any] = [{}]
        self._status, self._headers = 200, dict[str, str]()
        app = web.Application(client_max_size=64 * MIB)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._server = TestServer(app, host="127.0.0.1")

    async def __aenter__(self) -> Self:
        await self._server.start_server(shutdown_timeout=0.1)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    @property
    def access(self) -> Access:
        """The way to it, for anybody."""
        return Access(str(self._server.make_url("")).rstrip("/"), namespace="ns")

    @property
    def request(self) -> Asked:
        """The only request."""
        (one,) = self.requests
        return one

    def answer(self, *documents: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answers so from now on: with one document after the other, and then with the last."""
        self._documents, self._status, self._headers = list(documents), status, dict(headers or {})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append(Asked(request.method, request.path, dict(request.query), dict(request.headers), body))
        return await self.handler(request)

    async def _next(self, _: web.Request) -> web.StreamResponse:
        found = self._documents.pop(0) if len(self._documents) > 1 else self._documents[0]
        text = found if isinstance(found, str) else json.dumps(found)
        return web.Response(text=text, status=self._status, headers=self._headers)


class Endless:
    """A handler whose answer has no end. `sent` counts its bytes."""

    sent = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 65536)
            self.sent += 65536
            for _ in range(4):  # so that the client, in the same thread, keeps up, and no buffer hides what it takes
                await asyncio.sleep(0)
