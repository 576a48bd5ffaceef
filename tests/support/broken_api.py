"""What stands between one client and the API server, and misbehaves on demand: a proxy that ends TLS.

It refuses requests as an API server that is overloaded does, answers late, loses answers to requests that were carried
out, breaks off in the middle of an answer, and ends watches.
"""

import asyncio
import random
from typing import Literal

import aiohttp
from aiohttp import web

from tests.support.apiserver import ApiServer, free_port
from tests.support.own_loop import OwnLoop

type Trouble = Literal["429", "500", "503", "409", "slow", "lost", "torn", "expired"]

_REFUSALS = {"429": "TooManyRequests", "500": "InternalError", "503": "ServiceUnavailable", "409": "Conflict"}
_MOST_LATE_SECONDS = 6.0
_MOST_BYTES = 64 << 20
_HOP_BY_HOP = {"transfer-encoding", "content-encoding", "content-length", "connection", "keep-alive", "host"}
_WRITES = {"POST", "PUT", "PATCH", "DELETE"}


class BrokenApi(OwnLoop):
    """The proxy, in a thread of its own; use as a context manager.

    Attributes:
        troubled: how many requests it did something to, by what.
    """

    def __init__(self, server: ApiServer, seed: int) -> None:
        super().__init__()
        self.port = free_port()
        self.troubled: dict[Trouble, int] = {}
        self._server = server
        self._random = random.Random(seed)
        self._trouble: Trouble | None = None
        self._share = 0.0

    def begin(self, trouble: Trouble, share: float) -> None:
        """From now on that happens to this share of the requests that it can happen to."""
        self._share, self._trouble = share, trouble

    def heal(self) -> None:
        """From now on everything is passed on."""
        self._trouble = None

    async def _start(self) -> None:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._server.client_tls(), limit=0),
            timeout=aiohttp.ClientTimeout(total=None, connect=5),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=_MOST_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._server.server_tls()).start()

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._http.close()

    def _drawn(self, request: web.Request) -> Trouble | None:
        trouble = self._trouble
        if trouble is None or self._random.random() >= self._share:
            return None
        fits = {
            "409": request.method in {"PUT", "PATCH"},
            "lost": request.method in _WRITES,
            "expired": "watch" in request.query,
        }
        if not fits.get(trouble, True):
            return None
        self.troubled[trouble] = self.troubled.get(trouble, 0) + 1
        return trouble

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        trouble = self._drawn(request)
        if trouble in _REFUSALS:
            headers = {"Retry-After": "1"} if trouble == "429" else {}
            return web.json_response(_status(int(trouble), _REFUSALS[trouble]), status=int(trouble), headers=headers)
        if trouble == "slow":
            await asyncio.sleep(self._random.uniform(0, _MOST_LATE_SECONDS))
        if trouble == "expired":
            return web.json_response({"type": "ERROR", "object": _status(410, "Expired")})
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = f"{self._server.url}{request.raw_path}"
        try:
            async with self._http.request(request.method, url, data=body or None, headers=headers) as answer:
                return await self._passed(request, answer, trouble)
        except (aiohttp.ClientError, OSError):  # the API server is down
            _hang_up(request)
            return web.Response(status=502)

    async def _passed(
        self, request: web.Request, answer: aiohttp.ClientResponse, trouble: Trouble | None
    ) -> web.StreamResponse:
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
        if "Content-Encoding" in answer.headers:
            headers["Content-Encoding"] = answer.headers["Content-Encoding"]
        response = web.StreamResponse(status=answer.status, headers=headers)
        if trouble == "lost":
            await answer.read()
            _hang_up(request)
            return response
        if trouble == "torn":
            response.content_length = int(answer.headers.get("Content-Length", 1 << 20))
        await response.prepare(request)
        async for part in answer.content.iter_any():
            if trouble == "torn":
                await response.write(part[: len(part) // 2])
                _hang_up(request)
                return response
            await response.write(part)
        await response.write_eof()
        return response


def _hang_up(request: web.Request) -> None:
    if request.transport:
        request.transport.abort()


def _status(code: int, reason: str) -> dict[str, object]:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return status | {"message": f"chaos: {reason}", "reason": reason, "code": code}
