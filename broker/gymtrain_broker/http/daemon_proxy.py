"""Passes calls to a sandbox's daemon, for callers that can't reach pods. Streamed both ways.

Websockets are not passed on: they need the daemon's own address.
"""

from http import HTTPStatus

import aiohttp
from aiohttp import web
from yarl import URL

from gymtrain_api.sandboxes import SandboxState
from gymtrain_broker.control.broker import Broker
from gymtrain_broker.control.daemons import Daemons
from gymtrain_broker.errors import BadRequestError, DaemonError, NotRunningError

_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 60.0  # the daemon of a silent command says so every 10 s
_CHUNK = 64 * 1024
# Of one connection, not of the call that goes over it.
_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
    "upgrade", "host", "authorization", "content-length",
}  # fmt: skip


class DaemonProxy:
    """Passes calls on to daemons."""

    def __init__(self, broker: Broker, daemons: Daemons) -> None:
        self._broker = broker
        self._daemons = daemons

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """ANY /v1/sandboxes/{id}/daemon/{path}."""
        if "upgrade" in request.headers:
            raise BadRequestError("websockets aren't forwarded: use the sandbox's own url and token")
        sandbox = self._broker.document(self._broker.find(request.match_info["id"]))
        if sandbox.state is not SandboxState.RUNNING or sandbox.url is None:
            why = f": {sandbox.message}" if sandbox.message else ""
            raise NotRunningError(f"sandbox {sandbox.id} is {sandbox.state}{why}")
        path = request.rel_url.raw_path.partition("/daemon/")[2]
        query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        headers["Authorization"] = f"Bearer {sandbox.token}"
        if (length := request.headers.get("Content-Length")) is not None:
            headers["Content-Length"] = length
        target = URL(f"{sandbox.url}/{path}{query}", encoded=True)
        body = request.content.iter_chunked(_CHUNK) if request.can_read_body else None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS)
        answer: web.StreamResponse | None = None
        try:
            async with self._daemons.http.request(
                request.method,
                target,
                data=body,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                auto_decompress=False,
            ) as response:
                kept = {name: value for name, value in response.headers.items() if name.lower() not in _HOP}
                answer = web.StreamResponse(status=response.status, headers=kept)
                await answer.prepare(request)
                async for chunk in response.content.iter_any():
                    await answer.write(chunk)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            if answer is None:
                text = f"the daemon of sandbox {sandbox.id} did not answer: {type(error).__name__}: {error}"
                raise DaemonError(text) from error
            if request.transport is not None:
                request.transport.abort()  # the client must not take a part for the whole
            return answer
        if request.method != "HEAD" and response.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            await answer.write_eof()
        return answer
