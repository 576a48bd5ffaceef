"""Where the sandboxes of both sides run: a namespace, the machine's own node or fake ones, the same pods."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from benchmarks.sandboxes.kube import Kube, Object
from benchmarks.sandboxes.load import until
from dev.cluster.extras import FAKE_NODE, FAKE_NODE_LABEL
from tests.support.images import image

IMAGE = image("swe-marshmallow-4-2-2")  # of one task of examples/swe
# Small, so that a hundred fit on a small node.
RESOURCES: Object = {
    "requests": {"cpu": "1m", "memory": "16Mi", "ephemeral-storage": "1Mi"},
    "limits": {"memory": "256Mi", "ephemeral-storage": "1Gi"},
}
_FAKE_NODES, _FAKE_PODS_EACH = 20, 250
_ANNOTATION, _, _FAKE = FAKE_NODE.partition("=")
_LABEL, _, _LABEL_VALUE = FAKE_NODE_LABEL.partition("=")


@dataclass(frozen=True)
class Place:
    """Nodes."""

    name: str
    pod: Object = field(default_factory=dict[str, object])  # what a pod's spec needs to get there


REAL = Place("real pods")
FAKE = Place(
    "fake nodes",
    {
        "nodeSelector": {_LABEL: _LABEL_VALUE},
        "tolerations": [{"key": _ANNOTATION, "operator": "Exists", "effect": "NoSchedule"}],
    },
)


@asynccontextmanager
async def namespace(kube: Kube, name: str) -> AsyncIterator[str]:
    """A new one, deleted with everything in it."""
    path = f"/api/v1/namespaces/{name}"
    await _gone(kube, path)
    await kube.create("/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        yield name
    finally:
        # Pods first and without grace: thousands of them, one after another, would take the namespace minutes.
        await kube.delete(f"{path}/pods?gracePeriodSeconds=0")
        await _gone(kube, path)


async def _gone(kube: Kube, path: str) -> None:
    async def is_gone() -> bool:
        try:
            await kube.get(path)
        except KeyError:
            return True
        return False

    await kube.delete(path)
    await until(is_gone, f"{path} is gone")


@asynccontextmanager
async def at(kube: Kube, place: Place) -> AsyncIterator[None]:
    """The nodes of a place while they are needed; for fake ones, daemons that answer instead of their pods."""
    if place is not FAKE:
        yield
        return
    for number in range(_FAKE_NODES):
        await kube.apply(f"/api/v1/nodes/fake-{number}", _node(f"fake-{number}"))
    daemons = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.sandboxes.stand_in")
    try:
        await until(lambda: _nodes_ready(kube), "the fake nodes are Ready (dev/run addon kwok)", 60)
        yield
    finally:
        daemons.terminate()
        await daemons.wait()
        for number in range(_FAKE_NODES):
            await kube.delete(f"/api/v1/nodes/fake-{number}")


async def _nodes_ready(kube: Kube) -> bool:
    nodes = (await kube.get(f"/api/v1/nodes?labelSelector={_LABEL}%3D{_LABEL_VALUE}"))["items"]
    ready = [
        node
        for node in nodes
        if any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions") or [])
    ]
    return len(ready) >= _FAKE_NODES


def _node(name: str) -> Object:
    room = {"cpu": "256", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": str(_FAKE_PODS_EACH)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {_ANNOTATION: _FAKE},
            "labels": {_LABEL: _LABEL_VALUE, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [{"key": _ANNOTATION, "value": _FAKE, "effect": "NoSchedule"}]},
        "status": {"allocatable": room, "capacity": room},
    }
