"""The only way from the operator to the API server: a few verbs on JSON objects.

lightkube brings the configuration and the authentication (kubeconfig, exec plugins, the pod's token and
its renewal); the requests are made here, because its client can't delete with a precondition, and an
object that was replaced since it was read must not be deleted in its successor's stead.

Every call has a deadline, every answer a bound. Every failure is one of `errors.ClusterError`.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from time import perf_counter
from typing import Any, Self

import httpx2 as httpx
from lightkube import KubeConfig
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.core.exceptions import ConfigError

from gymtrain_api.labels import FIELD_MANAGER
from gymtrain_operator import kinds, metrics
from gymtrain_operator.errors import ClusterError, ConflictError, NotFoundError, RejectedError, UnreachableError
from gymtrain_operator.kinds import Kind
from gymtrain_operator.trimming import trimmed

type Object = dict[str, Any]

LOG_LINE_BYTES = 16 << 10
"""The longest line that a container runtime stores: containerd's default; CRI-O's is shorter."""

_CALL_SECONDS = 15.0
# A page and an answer, as they are read. Objects are 1.5 MiB at most (etcd's limit), and commonly 10 KiB: whoever fills
# a namespace with large ones under a run's labels has that run stand still, and not the operator run out of memory.
_PAGE = 100
_MAX_ANSWER_BYTES = 16 << 20
# Metadata alone, with which the API server answers for every kind, custom resources among them.
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
# Server-side apply says with HTTP 500 that an object doesn't fit its schema (kubernetes#122480): an unknown field, a
# list that is none, a name twice in `env`, a quantity that is none.
_UNFIT = ("failed to create typed patch object", "failed to convert new object")
# What admission denies has whatever code a webhook or a policy gives it (422 where a policy gives none). Quotas, limit
# ranges and Pod Security answer 403.
_DENIED = re.compile(
    r"admission webhook \".+?\" denied the request|policy '.+?'( with binding '.+?')? denied request", re.IGNORECASE
)
_LONGEST_RETRY_AFTER = 300.0  # seconds


class KubeClient:
    """Access to the API server."""

    def __init__(self, client: httpx.AsyncClient, namespace: str, on_answer: Callable[[], None] = lambda: None) -> None:
        """`namespace` is the one that the kubeconfig or the pod names; `on_answer` is called when the API server
        answered, be it with a refusal."""
        self._client = client
        self.namespace = namespace
        self._on_answer = on_answer

    @classmethod
    def connect(cls, on_answer: Callable[[], None]) -> Self:
        """As kubectl would: in a pod its service account, else KUBECONFIG or ~/.kube/config.

        Raises:
            ClusterError: there is no usable configuration.
        """
        try:
            config = KubeConfig.from_env().get()
        except ConfigError as error:
            raise ClusterError(f"no usable kubeconfig: {error}. Set KUBECONFIG, or run in a pod") from error
        if config is None:
            raise ClusterError("the kubeconfig has no current context")
        # Proxies are for the world outside; the API server is never behind one.
        params = ConnectionParams(timeout=httpx.Timeout(_CALL_SECONDS), trust_env=False)
        return cls(AsyncClient(config, params), config.namespace, on_answer)

    async def close(self) -> None:
        """Ends all connections."""
        await self._client.aclose()

    async def knows_runs(self) -> bool:
        """Whether the API server serves GymTrainingRuns, that is, the CRD is installed."""
        try:
            await self._call("GET", kinds.RUN.api)
        except NotFoundError:
            return False
        return True

    async def serves(self, kinds_: Iterable[Kind]) -> bool:
        """Whether the API server serves kinds of one API group and version. Anybody may ask for that."""
        wanted = {kind.plural: kind.api for kind in kinds_}
        try:
            for api in set(wanted.values()):
                found = await self._json("GET", api)
                if not wanted.keys() <= {resource.get("name") for resource in found.get("resources") or []}:
                    return False
        except NotFoundError:
            return False
        return True

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object."""
        return await self._json("GET", kind.path(namespace, name))

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Object]:
        """All objects that match a label selector, of all namespaces where `namespace` is None, without what nobody
        here reads of them (`trimmed`)."""
        # Items of a list carry no kind of their own.
        return [trimmed(kind, {"kind": kind.name, **item}) async for item in self._items(kind, namespace, selector)]

    async def versions(self, kind: Kind, namespace: str | None) -> dict[tuple[str, str], str]:
        """The resourceVersion of all objects of a kind by namespace and name: nothing else of them is read."""
        found: dict[tuple[str, str], str] = {}
        async for item in self._items(kind, namespace, accept=_METADATA_ONLY):
            meta = item["metadata"]
            found[meta["namespace"], meta["name"]] = meta.get("resourceVersion", "")
        return found

    async def _items(
        self, kind: Kind, namespace: str | None, selector: str = "", accept: str = "application/json"
    ) -> AsyncIterator[Object]:
        """The items of a list, page by page."""
        params = {"limit": str(_PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            page = await self._json("GET", kind.path(namespace), params=params, accept=accept)
            token = (page.get("metadata") or {}).get("continue")
            for item in page.get("items") or []:
                yield item
            del page  # before the next one is read
            if not token:
                return
            params["continue"] = token

    async def apply(self, kind: Kind, manifest: Object, *, uid: str = "") -> Object:
        """Server-side apply. With `uid`, only onto that very object, over other writers' values.

        Without it the object should not exist yet, and other writers' values are a conflict.
        """
        meta = manifest["metadata"] | ({"uid": uid} if uid else {})
        params = {"fieldManager": FIELD_MANAGER, "force": "true" if uid else "false"}
        return await self._json(
            "PATCH",
            kind.path(meta["namespace"], meta["name"]),
            body=manifest | {"metadata": meta},
            params=params,
            content_type="application/apply-patch+yaml",
        )

    async def create(self, kind: Kind, manifest: Object) -> Object:
        """Creates an object; ConflictError where the name is taken, RejectedError where it has a field that no such
        object has: without being told to, the API server drops those of a creation and says nothing."""
        params = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return await self._json("POST", kind.path(manifest["metadata"]["namespace"]), body=manifest, params=params)

    async def replace(self, kind: Kind, manifest: Object, subresource: str = "") -> Object:
        """Writes an object, if its resourceVersion is still the one in `manifest`."""
        meta = manifest["metadata"]
        path = kind.path(meta["namespace"], meta["name"], subresource)
        return await self._json("PUT", path, body=manifest, params={"fieldManager": FIELD_MANAGER})

    async def change_metadata(self, kind: Kind, live: Object, changes: Object) -> Object:
        """Merges `changes` into the metadata of that very object, if it is still as it was read; None takes a field
        away, and a list is replaced as a whole.

        Raises:
            ConflictError: it changed meanwhile.
        """
        meta = live["metadata"]
        known = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        return await self._json(
            "PATCH",
            kind.path(meta["namespace"], meta["name"]),
            body={"metadata": changes | known},
            params={"fieldManager": FIELD_MANAGER},
            content_type="application/merge-patch+json",
        )

    async def scale(self, namespace: str, deployment: str, uid: str, replicas: int) -> None:
        """Sets the number of pods of a Deployment, and nothing else of it."""
        await self._json(
            "PATCH",
            kinds.DEPLOYMENT.path(namespace, deployment),
            body={"metadata": {"uid": uid}, "spec": {"replicas": replicas}},
            params={"fieldManager": FIELD_MANAGER},
            content_type="application/merge-patch+json",
        )

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, *, foreground: bool = False) -> None:
        """Deletes that very object; one that is gone, or is another by now, is left alone."""
        policy = "Foreground" if foreground else "Background"
        body = {"preconditions": {"uid": uid}, "propagationPolicy": policy}
        try:
            await self._call("DELETE", kind.path(namespace, name), body=body)
        except (NotFoundError, ConflictError):
            return

    async def logs(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        """The last lines of a container's log; of its instance before the restart where `previous`.

        The kubelet counts lines as the runtime stores them, in parts of 16 KiB, so that many bytes a line are all
        there is; where a runtime has longer ones, the log ends within the last lines.
        """
        most = lines * LOG_LINE_BYTES
        params = {"container": container, "tailLines": str(lines), "limitBytes": str(most)}
        params |= {"previous": "true"} if previous else {}
        answer = await self._call("GET", kinds.POD.path(namespace, pod, "log"), params=params, most=most)
        return answer.content.decode(errors="replace")

    async def _json(self, method: str, path: str, **more: Any) -> Object:
        try:
            found = json.loads((await self._call(method, path, **more)).content)
        except ValueError as error:
            raise UnreachableError(f"{method} {path}: the API server's answer is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise UnreachableError(f"{method} {path}: the API server answered no object")
        return found

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        most: int = _MAX_ANSWER_BYTES,
    ) -> httpx.Response:
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {"Accept": accept} | ({"Content-Type": content_type} if content else {})
        begin = perf_counter()
        code = "none"
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                answer = await self._read(method, path, most, content=content, params=params, headers=headers)
            code = str(answer.status_code)
        except (httpx.HTTPError, TimeoutError, ConfigError, OSError) as error:
            raise UnreachableError(f"{method} {path}: {type(error).__name__}: {error}") from error
        finally:
            metrics.API_REQUESTS.labels(method, code).inc()
            metrics.API_SECONDS.labels(method).observe(perf_counter() - begin)
        # 5xx may be a proxy's, and a process whose credentials are refused (401) may read better ones at its start.
        if answer.status_code < 500 and answer.status_code != 401:
            self._on_answer()
        if answer.status_code >= 300:  # redirects are not followed: the API server has none
            raise _error(method, path, answer)
        return answer

    async def _read(self, method: str, path: str, most: int, **request: Any) -> httpx.Response:
        """The answer, read to its end.

        Raises:
            UnreachableError: it is longer than `most` bytes.
        """
        async with self._client.stream(method, f"/{path}", **request) as answer:
            body = bytearray()
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > most:
                    raise UnreachableError(
                        f"{method} {path}: the answer is longer than {most >> 20} MiB and is not read any further"
                    )
        headers = answer.headers.copy()
        headers.pop("content-encoding", None)  # what was read is unpacked
        headers.pop("content-length", None)
        return httpx.Response(answer.status_code, headers=headers, content=bytes(body))


def _error(method: str, path: str, answer: httpx.Response) -> ClusterError:
    """The domain error of an answer that is none."""
    try:
        text = str(answer.json().get("message", "")) or answer.text
    except (ValueError, AttributeError):
        text = answer.text
    message = text[:2000] or f"{method} {path}: HTTP {answer.status_code}"
    if _DENIED.search(message):
        return RejectedError(message, final=False)
    match answer.status_code:
        case 404:
            return NotFoundError(message)
        case 409:
            return ConflictError(message)
        case 400 | 422:
            return RejectedError(message, final=True)
        case 500 if message.startswith(_UNFIT):
            return RejectedError(message, final=True)
        case 403:
            return RejectedError(message, final=False)
        case _:
            words = f"{method} {path}: HTTP {answer.status_code}: {message}"
            return UnreachableError(words, retry_after=_retry_after(answer))


def _retry_after(answer: httpx.Response) -> float | None:
    """Seconds of the header Retry-After, which the API server gives as a number."""
    text = answer.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_RETRY_AFTER) if text.isdecimal() else None
