"""A patient client of the API server for tests that break it: asynchronous, and it asks again until it is answered."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any, Self

import aiohttp

from gymtrain_kube import kubeconfig
from tests.support.apiserver import ApiServer

type Object = dict[str, Any]

_PATIENCE_SECONDS = 180.0
_CALL_SECONDS = 20.0
_PAUSE_SECONDS = 0.5
MERGE_PATCH = "application/merge-patch+json"


class RestError(AssertionError):
    """The API server refused something, or never answered."""


class Rest:
    """Requests as one who may do everything; use as an asynchronous context manager."""

    def __init__(self, url: str, tls: ssl.SSLContext | bool, authorization: str = "") -> None:
        self._url, self._tls = url, tls
        self._headers = {"Authorization": authorization} if authorization else {}

    @classmethod
    def of_server(cls, server: ApiServer) -> Self:
        """To an API server of the tests' own."""
        return cls(server.url, server.client_tls(), f"Bearer {server.token}")

    @classmethod
    def of_kubeconfig(cls) -> Self:
        """As KUBECONFIG has it, by a certificate."""
        access = kubeconfig.load()
        return cls(access.url, access.tls)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=30)
        self._http = aiohttp.ClientSession(self._url, headers=self._headers, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def ask(self, method: str, path: str, body: Object | None = None) -> tuple[int, Object]:
        """Status and answer of a request; asked again while there is none, or one that blames the server.

        Raises:
            RestError: there was none, however long one waited.
        """
        headers = {"Content-Type": MERGE_PATCH if method == "PATCH" else "application/json"}
        timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
        end = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while True:
            try:
                async with self._http.request(
                    method, path, data=json.dumps(body) if body is not None else None, headers=headers, timeout=timeout
                ) as answer:
                    text = await answer.text()
                    # 429: its storage begins; of an eviction it is an answer.
                    if answer.status < 500 and (answer.status != 429 or path.endswith("/eviction")):
                        return answer.status, json.loads(text) if text.startswith("{") else {}
                    why = f"{answer.status} {text[:300]}"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                why = repr(error)
            if asyncio.get_running_loop().time() > end:
                raise RestError(f"{method} {path}: {why}")
            await asyncio.sleep(_PAUSE_SECONDS)

    async def done(self, method: str, path: str, body: Object | None = None, *, but: tuple[int, ...] = ()) -> Object:
        """The answer of a request that has to succeed, or to fail with one of `but`, which is answered with {}.

        Raises:
            RestError: it was refused.
        """
        status, found = await self.ask(method, path, body)
        if status in but:
            return {}
        if status >= 300:
            raise RestError(f"{method} {path}: {status} {found.get('message')}")
        return found

    async def items(self, path: str, selector: str = "") -> list[Object]:
        """All objects of a collection."""
        found = await self.done("GET", f"{path}?labelSelector={selector}" if selector else path)
        items: list[Object] = found["items"]
        return items

    async def watch(self, path: str) -> AsyncIterator[tuple[str, Object]]:
        """Every object of a collection, and each change of it, without end; after a gap all of them once more."""
        while True:
            try:
                found = await self.done("GET", path)
                for item in found["items"]:
                    yield "ADDED", item
                version = found["metadata"]["resourceVersion"]
                timeout = aiohttp.ClientTimeout(total=None, sock_read=90)
                async with self._http.get(
                    f"{path}?watch=1&timeoutSeconds=60&resourceVersion={version}", timeout=timeout, read_bufsize=1 << 22
                ) as stream:
                    async for line in stream.content:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        yield event["type"], event["object"]
            except (aiohttp.ClientError, OSError, ValueError):
                await asyncio.sleep(_PAUSE_SECONDS)
