"""The only way from the operator to the API server: a few verbs on its kinds, by namespace and name.

What is theirs of the answers is cut to what is read here (`trimming`), each call is counted and waits for its turn
(`rate_limit`), a write leaves only while this process may act (`lease`), and each answer is a sign of life for the
operator's own health. What a write is answered with goes into the cache of what runs own. Every failure is a
`KubeError`, but for what keeps a write back.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Self

from gymtrain_api.labels import FIELD_MANAGER
from gymtrain_kube import kubeconfig
from gymtrain_kube.access import Access, in_pod
from gymtrain_kube.client import RestClient
from gymtrain_kube.errors import NotFoundError, UnreachableError
from gymtrain_kube.objects import Object
from gymtrain_operator import kinds, metrics
from gymtrain_operator.kinds import Kind
from gymtrain_operator.rate_limit import DEFAULT_BURST, DEFAULT_QPS, RateLimit
from gymtrain_operator.trimming import trimmed

_CONNECTIONS = 32  # each is 0.1 MB with its TLS, and the rate limit keeps no more of them busy
# A resourceVersion that no object has: etcd gives 1 to nothing. What is missing is made whatever version is named, and
# what is there is refused (Store.Update of k8s.io/apiserver 0.29 and 0.37). Reading first would be a second request.
_NONE_YET = "1"


class KubeClient:
    """Access to the API server."""

    def __init__(
        self,
        access: Access,
        on_answer: Callable[[], None] = lambda: None,
        *,
        on_write: Callable[[Kind, Object], None] = lambda kind, item: None,
        limit: RateLimit | None = None,
        before_write: Callable[[], None] = lambda: None,
        unacknowledged_seconds: float | None = None,
    ) -> None:
        """
        Args:
            on_answer: called when the API server answered, be it with a refusal.
            on_write: called with each object of a run as the API server has it after a write, cut as those of `list`.
            before_write: keeps a write back by what it raises, as `RestClient` has it. Not the Lease's.
            unacknowledged_seconds: how long a request may be on its way, as `RestClient` has it.
        """

        def count(method: str, status: int | None, seconds: float) -> None:
            metrics.API_REQUESTS.labels(method, str(status or "none")).inc()
            metrics.API_SECONDS.labels(method).observe(seconds)
            # 5xx may be a proxy's, and a process whose credentials are refused (401) may read better ones at its start.
            if status is not None and status < 500 and status != 401:
                on_answer()

        self.namespace = access.namespace
        self._on_write = on_write
        self._limit = limit or RateLimit(DEFAULT_QPS, DEFAULT_BURST)
        self._rest = RestClient(
            access,
            manager=FIELD_MANAGER,
            connections=_CONNECTIONS,
            on_call=count,
            before_write=before_write,
            unacknowledged_seconds=unacknowledged_seconds,
        )
        # The Lease waits neither for a turn nor for a connection: who doesn't renew it in time is no longer the leader.
        # Nor may a renewal arrive late: others would wait for a leader that is gone.
        self._lease = RestClient(
            access,
            manager=FIELD_MANAGER,
            connections=2,
            on_call=count,
            unacknowledged_seconds=unacknowledged_seconds,
        )
        # A watch holds its connection; a hundred of them, of many namespaces, would leave none to the rest.
        self._streams = RestClient(access, connections=0)

    @classmethod
    def connect(
        cls,
        on_answer: Callable[[], None],
        *,
        on_write: Callable[[Kind, Object], None] = lambda kind, item: None,
        limit: RateLimit | None = None,
        before_write: Callable[[], None] = lambda: None,
        unacknowledged_seconds: float | None = None,
    ) -> Self:
        """As kubectl would: in a pod its service account, else KUBECONFIG or ~/.kube/config.

        Raises:
            AccessError: there is no usable configuration.
        """
        return cls(
            in_pod() or kubeconfig.load(),
            on_answer,
            on_write=on_write,
            limit=limit,
            before_write=before_write,
            unacknowledged_seconds=unacknowledged_seconds,
        )

    async def close(self) -> None:
        """Ends all connections."""
        await self._rest.close()
        await self._lease.close()
        await self._streams.close()

    async def knows_runs(self) -> bool:
        """Whether the API server serves GymTrainingRuns, that is, the CRD is installed."""
        try:
            await self._ask(self._rest.get, f"/{kinds.RUN.api}")
        except NotFoundError:
            return False
        return True

    async def serves(self, kinds_: Iterable[Kind]) -> bool:
        """Whether the API server serves kinds of one API group and version. Anybody may ask for that."""
        wanted = {kind.plural: kind.api for kind in kinds_}
        try:
            for api in set(wanted.values()):
                found = await self._ask(self._rest.get, f"/{api}")
                if not wanted.keys() <= {resource.get("name") for resource in found.get("resources") or []}:
                    return False
        except NotFoundError:
            return False
        return True

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        """One object; of the cluster where `namespace` is None."""
        path = _path(kind, namespace, name)
        return await (self._lease.get(path) if kind is kinds.LEASE else self._ask(self._rest.get, path))

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Object]:
        """All objects that match a label selector, of all namespaces where `namespace` is None, without what nobody
        here reads of them (`trimmed`)."""
        keep = partial(trimmed, kind)
        items, _ = await self._ask(self._rest.list_all, _path(kind, namespace), selector, keep=keep)
        return items

    async def names(self, kind: Kind, selector: str) -> tuple[frozenset[str], str]:
        """The names of all objects of a kind of the cluster that match, and the resourceVersion to `watch` from."""
        items, version = await self._ask(self._rest.list_all, _path(kind, None), selector, keep=_only_name)
        return frozenset(item["name"] for item in items), version

    async def version(self, kind: Kind, namespace: str | None, selector: str) -> str:
        """The resourceVersion of what `list` would list now, to `watch` from."""
        return await self._ask(self._rest.version, _path(kind, namespace), selector)

    async def watch(
        self, kind: Kind, namespace: str | None, selector: str, version: str
    ) -> AsyncGenerator[tuple[str, Object]]:
        """What changes after `version`, as `RestClient.watch` has it, cut like the objects of `list`."""
        async for event, item in self._streams.watch(_path(kind, namespace), selector, version):
            yield event, trimmed(kind, item)

    async def versions(self, kind: Kind, namespace: str | None) -> dict[tuple[str, str], str]:
        """The resourceVersion of all objects of a kind by namespace and name: nothing else of them is read."""
        found, _ = await self._ask(
            self._rest.list_all, _path(kind, namespace), metadata_only=True, keep=_key_and_version
        )
        return {(item["namespace"], item["name"]): item["version"] for item in found}

    async def apply(self, kind: Kind, manifest: Object, *, uid: str = "") -> Object:
        """Server-side apply. With `uid`, only onto that very object, over other writers' values.

        Raises:
            ConflictError: there is another object of the name; without `uid`, any.
        """
        meta = manifest["metadata"] | ({"uid": uid} if uid else {"resourceVersion": _NONE_YET})
        path = _path(kind, meta["namespace"], meta["name"])
        return await self._write(kind, self._rest.apply, path, manifest | {"metadata": meta}, force=bool(uid))

    async def create(self, kind: Kind, manifest: Object) -> Object:
        """Creates an object; ConflictError where the name is taken, RejectedError where it has a field that no such
        object has."""
        path = _path(kind, manifest["metadata"]["namespace"])
        if kind is kinds.LEASE:
            return await self._lease.create(path, manifest)
        return await self._write(kind, self._rest.create, path, manifest)

    async def replace(self, kind: Kind, manifest: Object, subresource: str = "") -> Object:
        """Writes an object, if its resourceVersion is still the one in `manifest`."""
        meta = manifest["metadata"]
        path = _path(kind, meta["namespace"], meta["name"], subresource)
        if kind is kinds.LEASE:
            return await self._lease.replace(path, manifest)
        return await self._write(kind, self._rest.replace, path, manifest)

    async def change_metadata(self, kind: Kind, live: Object, changes: Object) -> Object:
        """Merges `changes` into the metadata of that very object, if it is still as it was read; None takes a field
        away, and a list is replaced as a whole.

        Raises:
            ConflictError: it changed meanwhile.
        """
        return await self.change_seen(kind, live, {"metadata": changes})

    async def change_seen(self, kind: Kind, live: Object, changes: Object, subresource: str = "") -> Object:
        """Merges `changes` into that very object, or into its subresource, as `change_metadata` does.

        Raises:
            ConflictError: it changed meanwhile.
        """
        meta = live["metadata"]
        known = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        path = _path(kind, meta["namespace"], meta["name"], subresource)
        merged = changes | {"metadata": (changes.get("metadata") or {}) | known}
        return await self._write(kind, self._rest.merge_patch, path, merged)

    async def change(self, kind: Kind, namespace: str, name: str, changes: Object) -> Object:
        """Merges `changes` into an object, whichever has the name.

        Raises:
            NotFoundError: there is none.
        """
        return await self._write(kind, self._rest.merge_patch, _path(kind, namespace, name), changes)

    async def scale(self, kind: Kind, namespace: str, name: str, uid: str, replicas: int) -> None:
        """Sets `spec.replicas` of an object, and nothing else of it."""
        changes = {"metadata": {"uid": uid}, "spec": {"replicas": replicas}}
        await self._write(kind, self._rest.merge_patch, _path(kind, namespace, name), changes)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, *, foreground: bool = False) -> None:
        """Deletes that very object; one that is gone, or is another by now, is left alone."""
        propagation = "Foreground" if foreground else "Background"
        await self._ask(self._rest.delete, _path(kind, namespace, name), uid=uid, propagation=propagation)

    async def logs(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        """The last lines of a container's log, as `RestClient.logs` has them; of its instance before the restart where
        `previous`."""
        path = _path(kinds.POD, namespace, pod)
        return await self._ask(self._rest.logs, path, container, lines=lines, previous=previous)

    async def _write(self, kind: Kind, write: Callable[..., Awaitable[Object]], *given: Any, **more: Any) -> Object:
        found = await self._ask(write, *given, **more)
        if kind in kinds.CHILDREN:
            self._on_write(kind, trimmed(kind, found))
        return found

    async def _ask[T](self, call: Callable[..., Awaitable[T]], *given: Any, **more: Any) -> T:
        """Makes a call when it is its turn."""
        metrics.API_WAITING.inc(await self._limit.turn())
        try:
            return await call(*given, **more)
        except UnreachableError as error:
            if error.retry_after is not None:
                self._limit.rest(error.retry_after)
            raise


def _only_name(item: Object) -> Object:
    return {"name": item["metadata"]["name"]}


def _key_and_version(item: Object) -> Object:
    meta = item["metadata"]
    return {"namespace": meta["namespace"], "name": meta["name"], "version": meta.get("resourceVersion", "")}


def _path(kind: Kind, namespace: str | None, name: str = "", subresource: str = "") -> str:
    return f"/{kind.path(namespace, name, subresource)}"
