"""The few verbs of `gymtrain_operator.kube_client.KubeClient` on a dict: for tests of what is done in which order."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from gymtrain_kube.errors import ConflictError, NotFoundError
from gymtrain_operator import kinds
from gymtrain_operator.kinds import Kind
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.trimming import trimmed

type Object = dict[str, Any]


def merge_patch(live: Object, patch: Mapping[str, Any]) -> Object:
    """RFC 7386."""
    merged = copy.deepcopy(live)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key) or {}, value) if isinstance(value, dict) else value
    return merged


class FakeKubeClient(KubeClient):
    """Objects by kind, namespace and name. `calls` records the writes."""

    def __init__(self) -> None:
        self.namespace = "ns"
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.calls: list[str] = []
        self.reads = 0
        self.logs_text: dict[str, str] = {}
        self.serves_agent_sandbox = False
        self.serves_groups = False
        self.serves_kueue = False
        self.serves_pod_groups = False
        self.fail: dict[str, Exception] = {}  # by call, such as "PUT GymTrainingRun" or "CREATE Job/name"
        self._version = 0

    def put(self, kind: Kind, manifest: Object) -> Object:
        """Places an object as another writer would."""
        meta = manifest["metadata"]
        self._version += 1
        key = (kind.name, meta["namespace"], meta["name"])
        old = self.objects.get(key)
        stored = copy.deepcopy(manifest)
        stored["metadata"] |= {
            "uid": old["metadata"]["uid"] if old else meta.get("uid") or f"uid-{self._version}",
            "resourceVersion": str(self._version),
            "creationTimestamp": "2027-01-15T08:00:00Z",
        }
        self.objects[key] = stored
        return copy.deepcopy(stored)

    def _did(self, verb: str, kind: Kind, name: str) -> None:
        call = f"{verb} {kind.name}"
        self.calls.append(f"{call}/{name}")
        for which in (call, f"{call}/{name}"):
            if which in self.fail:
                raise self.fail[which]

    async def serves(self, kinds_: Iterable[Kind]) -> bool:
        if kinds.WORKLOAD in kinds_:
            return self.serves_kueue
        if kinds.POD_GROUP in kinds_:
            return self.serves_pod_groups
        return self.serves_groups if kinds.LEADER_WORKER_SET in kinds_ else self.serves_agent_sandbox

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        self.reads += 1
        try:
            return copy.deepcopy(self.objects[kind.name, namespace or "", name])
        except KeyError:
            raise NotFoundError(f"{kind.name} {name} not found") from None

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Object]:
        self.reads += 1
        if f"LIST {kind.name}" in self.fail:
            raise self.fail[f"LIST {kind.name}"]
        wanted = dict(pair.split("=") for pair in selector.split(",") if pair)
        return [
            copy.deepcopy(trimmed(kind, item))
            for (k, ns, _), item in sorted(self.objects.items())
            if k == kind.name
            and namespace in (None, ns)
            and wanted.items() <= (item["metadata"].get("labels") or {}).items()
        ]

    async def versions(self, kind: Kind, namespace: str | None) -> dict[tuple[str, str], str]:
        found = (item["metadata"] for item in await self.list(kind, namespace))
        return {(meta["namespace"], meta["name"]): meta["resourceVersion"] for meta in found}

    async def apply(self, kind: Kind, manifest: Object, *, uid: str = "") -> Object:
        meta = manifest["metadata"]
        self._did("APPLY", kind, meta["name"])
        if not uid and (kind.name, meta["namespace"], meta["name"]) in self.objects:
            raise ConflictError("exists")
        return self.put(kind, manifest)

    async def create(self, kind: Kind, manifest: Object) -> Object:
        meta = manifest["metadata"]
        self._did("CREATE", kind, meta["name"])
        if (kind.name, meta["namespace"], meta["name"]) in self.objects:
            raise ConflictError("exists")
        return self.put(kind, manifest)

    async def replace(self, kind: Kind, manifest: Object, subresource: str = "") -> Object:
        meta = manifest["metadata"]
        self._did("PUT", kind, meta["name"])
        live = self.objects.get((kind.name, meta["namespace"], meta["name"]))
        if live is None:
            raise NotFoundError("gone")
        if live["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            raise ConflictError("changed")
        return self.put(kind, live | {"status": manifest["status"]} if subresource else manifest)

    async def change_seen(self, kind: Kind, live: Object, changes: Object, subresource: str = "") -> Object:
        meta = live["metadata"]
        self._did("PATCH", kind, meta["name"])
        found = self.objects.get((kind.name, meta["namespace"], meta["name"]))
        if found is None:
            raise NotFoundError("gone")
        if found["metadata"]["uid"] != meta["uid"] or found["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            raise ConflictError("changed")
        return self.put(kind, merge_patch(found, changes))

    async def change(self, kind: Kind, namespace: str, name: str, changes: Object) -> Object:
        self._did("PATCH", kind, name)
        found = self.objects.get((kind.name, namespace, name))
        if found is None:
            raise NotFoundError("gone")
        return self.put(kind, merge_patch(found, changes))

    async def scale(self, kind: Kind, namespace: str, name: str, uid: str, replicas: int) -> None:
        self.calls.append(f"SCALE {kind.name}/{name}")
        self.objects[kind.name, namespace, name]["spec"]["replicas"] = replicas

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, *, foreground: bool = False) -> None:
        self._did("DELETE", kind, name)
        live = self.objects.get((kind.name, namespace, name))
        if live and live["metadata"]["uid"] == uid:
            del self.objects[kind.name, namespace, name]

    async def logs(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        self.reads += 1
        return self.logs_text.get(container, "")
