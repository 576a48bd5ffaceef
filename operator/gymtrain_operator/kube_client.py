"""The only way from the operator to the API server: a few verbs on its kinds, by namespace and name.

What is theirs of the answers is cut to what is read here (`trimming`), each call is counted, and each answer is a sign
of life for the operator's own health. Every failure is a `KubeError`.
"""

from collections.abc import Callable, Iterable
from typing import Self

from gymtrain_api.labels import FIELD_MANAGER
from gymtrain_kube import kubeconfig
from gymtrain_kube.access import Access, in_pod
from gymtrain_kube.client import RestClient
from gymtrain_kube.errors import NotFoundError
from gymtrain_kube.objects import Object
from gymtrain_operator import kinds, metrics
from gymtrain_operator.kinds import Kind
from gymtrain_operator.trimming import trimmed


class KubeClient:
    """Access to the API server."""

    def __init__(self, access: Access, on_answer: Callable[[], None] = lambda: None) -> None:
        """`on_answer` is called when the API server answered, be it with a refusal."""

        def count(method: str, status: int | None, seconds: float) -> None:
            metrics.API_REQUESTS.labels(method, str(status or "none")).inc()
            metrics.API_SECONDS.labels(method).observe(seconds)
            # 5xx may be a proxy's, and a process whose credentials are refused (401) may read better ones at its start.
            if status is not None and status < 500 and status != 401:
                on_answer()

        self.namespace = access.namespace
        self._rest = RestClient(access, manager=FIELD_MANAGER, on_call=count)

    @classmethod
    def connect(cls, on_answer: Callable[[], None]) -> Self:
        """As kubectl would: in a pod its service account, else KUBECONFIG or ~/.kube/config.

        Raises:
            AccessError: there is no usable configuration.
        """
        return cls(in_pod() or kubeconfig.load(), on_answer)

    async def close(self) -> None:
        """Ends all connections."""
        await self._rest.close()

    async def knows_runs(self) -> bool:
        """Whether the API server serves GymTrainingRuns, that is, the CRD is installed."""
        try:
            await self._rest.get(f"/{kinds.RUN.api}")
        except NotFoundError:
            return False
        return True

    async def serves(self, kinds_: Iterable[Kind]) -> bool:
        """Whether the API server serves kinds of one API group and version. Anybody may ask for that."""
        wanted = {kind.plural: kind.api for kind in kinds_}
        try:
            for api in set(wanted.values()):
                found = await self._rest.get(f"/{api}")
                if not wanted.keys() <= {resource.get("name") for resource in found.get("resources") or []}:
                    return False
        except NotFoundError:
            return False
        return True

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        """One object; of the cluster where `namespace` is None."""
        return await self._rest.get(_path(kind, namespace, name))

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Object]:
        """All objects that match a label selector, of all namespaces where `namespace` is None, without what nobody
        here reads of them (`trimmed`)."""
        items = self._rest.items(_path(kind, namespace), selector)
        # Items of a list carry no kind of their own.
        return [trimmed(kind, {"kind": kind.name, **item}) async for item in items]

    async def versions(self, kind: Kind, namespace: str | None) -> dict[tuple[str, str], str]:
        """The resourceVersion of all objects of a kind by namespace and name: nothing else of them is read."""
        found: dict[tuple[str, str], str] = {}
        async for item in self._rest.items(_path(kind, namespace), metadata_only=True):
            meta = item["metadata"]
            found[meta["namespace"], meta["name"]] = meta.get("resourceVersion", "")
        return found

    async def apply(self, kind: Kind, manifest: Object, *, uid: str = "") -> Object:
        """Server-side apply. With `uid`, only onto that very object, over other writers' values.

        Without it the object should not exist yet, and other writers' values are a conflict.
        """
        meta = manifest["metadata"] | ({"uid": uid} if uid else {})
        path = _path(kind, meta["namespace"], meta["name"])
        return await self._rest.apply(path, manifest | {"metadata": meta}, force=bool(uid))

    async def create(self, kind: Kind, manifest: Object) -> Object:
        """Creates an object; ConflictError where the name is taken, RejectedError where it has a field that no such
        object has."""
        return await self._rest.create(_path(kind, manifest["metadata"]["namespace"]), manifest)

    async def replace(self, kind: Kind, manifest: Object, subresource: str = "") -> Object:
        """Writes an object, if its resourceVersion is still the one in `manifest`."""
        meta = manifest["metadata"]
        return await self._rest.replace(_path(kind, meta["namespace"], meta["name"], subresource), manifest)

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
        return await self._rest.merge_patch(path, changes | {"metadata": (changes.get("metadata") or {}) | known})

    async def change(self, kind: Kind, namespace: str, name: str, changes: Object) -> Object:
        """Merges `changes` into an object, whichever has the name.

        Raises:
            NotFoundError: there is none.
        """
        return await self._rest.merge_patch(_path(kind, namespace, name), changes)

    async def scale(self, kind: Kind, namespace: str, name: str, uid: str, replicas: int) -> None:
        """Sets `spec.replicas` of an object, and nothing else of it."""
        changes = {"metadata": {"uid": uid}, "spec": {"replicas": replicas}}
        await self._rest.merge_patch(_path(kind, namespace, name), changes)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, *, foreground: bool = False) -> None:
        """Deletes that very object; one that is gone, or is another by now, is left alone."""
        propagation = "Foreground" if foreground else "Background"
        await self._rest.delete(_path(kind, namespace, name), uid=uid, propagation=propagation)

    async def logs(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        """The last lines of a container's log, as `RestClient.logs` has them; of its instance before the restart where
        `previous`."""
        return await self._rest.logs(_path(kinds.POD, namespace, pod), container, lines=lines, previous=previous)


def _path(kind: Kind, namespace: str | None, name: str = "", subresource: str = "") -> str:
    return f"/{kind.path(namespace, name, subresource)}"
