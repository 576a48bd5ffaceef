"""The verbs of the API server on the paths of its objects, over HTTP. Objects are plain dicts.

Operator and broker share it, and each has a client of its own over it: for what it writes, and how much at once.

Every call has a deadline, every answer a bound, and every failure is one of `errors.KubeError`. Writes carry what makes
them safe: a deletion the uid, a creation the wish to be refused where a field is unknown. Redirects are not followed,
since the API server has none, and proxies are not asked, since it is never behind one.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from gymtrain_kube.access import Access
from gymtrain_kube.errors import ConflictError, NotFoundError, UnreachableError, UnreadLogError, error_of
from gymtrain_kube.objects import Object

type OnCall = Callable[[str, int | None, float], None]
"""Called after each call, watches left out: with its method, its status or None where no answer came, its seconds."""

LOG_LINE_BYTES = 16 << 10
"""The longest line that a container runtime stores: containerd's default; CRI-O's is shorter."""

_CALL_SECONDS = 15.0
_WATCH_SECONDS = 60  # then the server ends the watch, and the next one goes on from its place
_SILENCE_SECONDS = 75.0
_KEEP_SECONDS = 60.0  # of an idle connection: the API server closes it after 90, maybe as a write is on its way
# A page and an answer, as they are read. Objects are 1.5 MiB at most (etcd's limit), and commonly 10 KiB: whoever fills
# a namespace with large ones gets an error, and not a process that runs out of memory.
_PAGE = 100
_ANSWER_BYTES = 16 << 20
_JSON = "application/json"
_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
# Metadata alone, with which the API server answers for every kind, custom resources among them.
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
# What the kubelet says, with status 200, where its runtime is away or knows no such container (1.34).
_NO_LOG = "unable to retrieve container logs for "


class RestClient:
    """One API server. Paths begin with /api or /apis. Made inside a running event loop."""

    def __init__(
        self,
        access: Access,
        *,
        manager: str = "",
        connections: int = 100,
        answer_bytes: int = _ANSWER_BYTES,
        on_call: OnCall = lambda method, status, seconds: None,
        before_write: Callable[[], None] = lambda: None,
        unacknowledged_seconds: float | None = None,
    ) -> None:
        """
        Args:
            manager: who writes, in `managedFields`; without it the API server takes the HTTP library's name.
            connections: how many at once, at most.
            answer_bytes: the longest answer that is read.
            before_write: called at the last moment before a write leaves: after all waiting for a connection, and
                again where it is sent once more. What it raises keeps the write back, and is raised by the call.
            unacknowledged_seconds: how long the kernel may try to get a request through. What it didn't get through by
                then, or by the end of the call or the process, never arrives, though the network heals. None: for as
                long as kernels try, which may be minutes.
        """
        self._url = access.url
        self._credentials = access.credentials
        self._manager = {"fieldManager": manager} if manager else {}
        self._answer_bytes = answer_bytes
        self._on_call = on_call
        self._before_write = before_write
        sockets = None if unacknowledged_seconds is None else _impatient_sockets(unacknowledged_seconds)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections, ssl=access.tls, keepalive_timeout=_KEEP_SECONDS, socket_factory=sockets
            ),
            timeout=aiohttp.ClientTimeout(total=None),  # each call has its own
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def close(self) -> None:
        """Ends all connections."""
        await self._http.close()

    async def get(self, path: str) -> Object:
        """One object, or what else is at that path."""
        return await self._json("GET", path)

    async def list_all(
        self,
        path: str,
        selector: str = "",
        *,
        page: int = _PAGE,
        metadata_only: bool = False,
        keep: Callable[[Object], Object] = lambda item: item,
    ) -> tuple[list[Object], str]:
        """All objects that match a label selector, without a kind of their own, and the resourceVersion to watch from.

        Args:
            metadata_only: nothing else of them is read.
            keep: what is kept of each, before the next page is read.
        """
        found: list[Object] = []
        version = ""
        async for part in self._pages(path, selector, page, metadata_only=metadata_only):
            found += map(keep, part.pop("items", None) or [])
            version = str((part.get("metadata") or {}).get("resourceVersion") or "")
        return found, version

    async def version(self, path: str, selector: str = "") -> str:
        """The resourceVersion of a collection now, to watch from; without its objects, but for one."""
        params = {"limit": "1"} | ({"labelSelector": selector} if selector else {})
        found = await self._json("GET", path, params=params, accept=_METADATA_ONLY)
        return str((found.get("metadata") or {}).get("resourceVersion") or "")

    async def watch(self, path: str, selector: str, version: str) -> AsyncGenerator[tuple[str, Object]]:
        """What changes after `version`: (ADDED, MODIFIED, DELETED or BOOKMARK, object). Ends after a minute.

        Raises:
            ExpiredError: the API server no longer knows that version.
            UnreachableError: the connection broke, or fell silent.
        """
        params = {
            "watch": "1",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CALL_SECONDS, sock_read=_SILENCE_SECONDS)
        try:
            async with self._answered("GET", path, params=params, timeout=timeout) as answer:
                if answer.status >= 300:
                    raise error_of("GET", path, answer.status, await self._body(answer, path))
                line = bytearray()
                async for part in answer.content.iter_any():
                    *ended, rest = part.split(b"\n")
                    for end in ended:
                        line += end
                        if line:
                            yield _event(path, bytes(line))
                        line.clear()
                    line += rest
                    if len(line) > self._answer_bytes:
                        raise UnreachableError(f"watch {path}: an event is longer than {self._answer_bytes >> 20} MiB")
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            raise UnreachableError(f"watch {path}: {_said(error)}") from error

    async def logs(self, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        """The last lines of a container's log; of its instance before the restart where `previous`. `pod` is the pod's
        path.

        The kubelet counts lines as the runtime stores them, in parts of 16 KiB, so that many bytes a line are all
        there is; where a runtime has longer ones, the log ends within the last lines.

        Raises:
            UnreadLogError: the node can't read it now.
        """
        most = lines * LOG_LINE_BYTES
        params = {"container": container, "tailLines": str(lines), "limitBytes": str(most)}
        params |= {"previous": "true"} if previous else {}
        log = (await self._call("GET", f"{pod}/log", params=params, most=most)).decode(errors="replace")
        if log.startswith(_NO_LOG) and "\n" not in log:
            raise UnreadLogError(f"{pod}, container {container}: {log}")
        return log

    async def create(self, path: str, manifest: Object) -> Object:
        """Creates an object in the collection at `path`.

        Raises:
            ConflictError: the name is taken.
            RejectedError: among others, it has a field that no such object has: without being told to, the API server
                drops those of a creation and says nothing.
        """
        return await self._json("POST", path, params={**self._manager, "fieldValidation": "Strict"}, body=manifest)

    async def apply(self, path: str, manifest: Object, *, force: bool) -> Object:
        """Server-side apply. Other writers' values are overwritten with `force`, and without a ConflictError. Where
        the manifest has a uid, nothing but that very object is written."""
        params = {**self._manager, "force": "true" if force else "false"}
        return await self._json("PATCH", path, params=params, body=manifest, content_type=_APPLY_PATCH)

    async def replace(self, path: str, manifest: Object) -> Object:
        """Writes the whole object, or its subresource; ConflictError where the manifest has another resourceVersion."""
        return await self._json("PUT", path, params=self._manager, body=manifest)

    async def merge_patch(self, path: str, changes: Object) -> Object:
        """Applies a merge patch; ConflictError where a uid or resourceVersion in it is no longer the object's."""
        return await self._json("PATCH", path, params=self._manager, body=changes, content_type=_MERGE_PATCH)

    async def json_patch(self, path: str, operations: list[Object]) -> Object:
        """Applies a JSON patch; ConflictError where one of its tests fails."""
        return await self._json("PATCH", path, params=self._manager, body=operations, content_type=_JSON_PATCH)

    async def delete(self, path: str, *, uid: str = "", resource_version: str = "", propagation: str = "") -> None:
        """Deletes an object; one that is gone, or has another uid or resourceVersion by now, is left alone.

        Args:
            propagation: what becomes of what it owns: Foreground, Background or Orphan; else as its kind has it.
        """
        conditions = {"uid": uid, "resourceVersion": resource_version}
        wishes = {"preconditions": {k: v for k, v in conditions.items() if v}, "propagationPolicy": propagation}
        body = {key: value for key, value in wishes.items() if value}
        try:
            await self._call("DELETE", path, body=body)
        except (NotFoundError, ConflictError):
            return

    async def _pages(
        self, path: str, selector: str, page: int, *, metadata_only: bool = False
    ) -> AsyncIterator[Object]:
        params = {"limit": str(page)} | ({"labelSelector": selector} if selector else {})
        while True:
            found = await self._json("GET", path, params=params, accept=_METADATA_ONLY if metadata_only else _JSON)
            token = (found.get("metadata") or {}).get("continue")
            yield found
            if not token:
                return
            params["continue"] = token

    async def _json(self, method: str, path: str, **more: Any) -> Object:
        text = await self._call(method, path, **more)
        try:
            found = json.loads(text)
        except ValueError as error:
            raise UnreachableError(
                f"{method} {path}: the API server answered something other than JSON: {error}"
            ) from error
        if not isinstance(found, dict):
            raise UnreachableError(f"{method} {path}: the API server answered JSON that is not an object")
        return found

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Object | list[Object] | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        most: int | None = None,
    ) -> bytes:
        data = None if body is None else _Write(json.dumps(body, separators=(",", ":")).encode(), self._before_write)
        headers = {"Accept": accept} | ({"Content-Type": content_type} if data else {})
        began = perf_counter()
        status: int | None = None
        try:
            async with (
                asyncio.timeout(_CALL_SECONDS),
                self._answered(method, path, params=params, data=data, headers=headers) as answer,
            ):
                text = await self._body(answer, path, most)
            status = answer.status
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            if data and data.held_back:
                raise data.held_back from None
            raise UnreachableError(f"{method} {path}: {_said(error)}") from error
        finally:
            self._on_call(method, status, perf_counter() - began)
        if answer.status >= 300:
            pause, tests = answer.headers.get("Retry-After", ""), content_type == _JSON_PATCH
            raise error_of(method, path, answer.status, text, retry_after=pause, tests=tests)
        return text

    @asynccontextmanager
    async def _answered(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **request: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer of which only the head is read. A 401 has new credentials tried, once, where there are some."""
        authorization = await self._credentials.authorization()
        for last in (False, True):
            own = {"Authorization": authorization} if authorization else {}
            async with self._http.request(
                method, self._url + path, headers={**(headers or {}), **own}, allow_redirects=False, **request
            ) as answer:
                if answer.status == 401 and not last:
                    fresh = await self._credentials.authorization(refused=authorization)
                    if fresh != authorization:
                        authorization = fresh
                        continue
                yield answer
                return

    async def _body(self, answer: aiohttp.ClientResponse, path: str, most: int | None = None) -> bytes:
        """The answer, read to its end.

        Raises:
            UnreachableError: it is longer than it may be.
        """
        bound = self._answer_bytes if most is None else most
        body = bytearray()
        async for part in answer.content.iter_any():
            body += part
            if len(body) > bound:
                size = f"{bound >> 20} MiB" if bound >> 20 else f"{bound >> 10} KiB"
                raise UnreachableError(f"{answer.method} {path}: the answer is longer than {size} and is not read on")
        return bytes(body)


class _Write(aiohttp.BytesPayload):
    """The body of a write. All of them have one, and without it none is carried out.

    Attributes:
        held_back: what `check` raised instead of letting it leave.
    """

    def __init__(self, value: bytes, check: Callable[[], None]) -> None:
        super().__init__(value)
        self._check = check
        self.held_back: Exception | None = None

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Sends it, from the check to the kernel without another task in between."""
        try:
            self._check()
        except Exception as error:
            self.held_back = error
            raise  # the HTTP client drops the connection, and wraps the error
        await super().write_with_length(writer, content_length)


def _impatient_sockets(seconds: float) -> Callable[[aiohttp.AddrInfoType], socket.socket]:
    """Sockets that give up after `seconds` without an acknowledgement, and that drop what is left once closed."""

    def make(address: aiohttp.AddrInfoType) -> socket.socket:
        made = socket.socket(*address[:3])
        # Linger for no time: closed with a reset. By default the kernel goes on with what it has, after the process.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(seconds * 1000)))
        return made

    return make


def _event(path: str, line: bytes) -> tuple[str, Object]:
    event = json.loads(line)
    kind, item = str(event["type"]), dict(event["object"])
    if kind == "ERROR":
        raise error_of("GET", path, int(item.get("code") or 500), json.dumps(item).encode())
    return kind, item


def _said(error: BaseException) -> str:
    """What an error of the connection says, with its class: some say nothing."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
