"""Their side: agent-sandbox v1 with its defaults, used as its own clients do: a claim is written, then watched."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from benchmarks.sandboxes.kube import Kube, KubeError, Object
from benchmarks.sandboxes.load import ClaimError, Held
from benchmarks.sandboxes.ours import resident
from benchmarks.sandboxes.places import IMAGE, RESOURCES, Place
from dev.host import processes
from dev.settings import Settings
from tests.support.restricted import restricted_spec

_GROUP = "extensions.agents.x-k8s.io/v1beta1"
_POOL = "bench"
_PATIENCE = 300.0
_WRITING = 64  # claims at once, as our broker writes at most


class Theirs:
    """A warm pool and claims on it."""

    name = "agent-sandbox"

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self.namespace = namespace
        self._base = f"/apis/{_GROUP}/namespaces/{namespace}"
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[Object]] = {}
        self._gate = asyncio.Semaphore(_WRITING)

    async def claim(self) -> Held:
        """By a SandboxClaim, until it is Ready."""
        name = f"claim-{next(self._numbers)}"
        waiting = self._waiting[name] = asyncio.get_running_loop().create_future()
        try:
            async with self._gate:
                await self._kube.create(f"{self._base}/sandboxclaims", _object("SandboxClaim", name, _CLAIM))
            async with asyncio.timeout(_PATIENCE):
                status = await waiting
        except (KubeError, TimeoutError) as error:
            with suppress(KubeError):  # it may have been made, and its sandbox would be waited for at the end
                await self._kube.delete(f"{self._base}/sandboxclaims/{name}")
            raise ClaimError(str(error)[:200] or type(error).__name__) from error
        finally:
            del self._waiting[name]
        sandbox = status["sandbox"]["name"]
        return Held(name, sandbox, warm=sandbox != name)  # one made for a claim has its name

    async def close(self, held: Held) -> None:
        """Deletes the claim; its Sandbox and pod are collected."""
        await self._kube.delete(f"{self._base}/sandboxclaims/{held.id}")

    async def ready(self) -> int:
        """As the pool says."""
        pool = await self._kube.get(f"{self._base}/sandboxwarmpools/{_POOL}")
        return int((pool.get("status") or {}).get("readyReplicas") or 0)

    def resident(self) -> float:
        """Of the controller's process, which has served other namespaces too."""
        found = processes.recorded(Settings(), "agent-sandbox-controller")
        return float("nan") if found is None else resident(found.pid)

    async def listen(self) -> None:
        """Tells those who wait that their claim is ready. Until it is cancelled."""
        while True:
            async for _, claim in self._kube.watch(f"{self._base}/sandboxclaims"):
                waiting = self._waiting.get(claim["metadata"]["name"])
                status = claim.get("status") or {}
                if waiting is not None and not waiting.done() and is_ready(status):
                    waiting.set_result(status)


_CLAIM: Object = {"warmPoolRef": {"name": _POOL}}


@asynccontextmanager
async def pool(kube: Kube, namespace: str, place: Place, replicas: int) -> AsyncIterator[Theirs]:
    """A template and a warm pool of it; of no sandboxes, claims are cold."""
    base = f"/apis/{_GROUP}/namespaces/{namespace}"
    template = {"podTemplate": {"spec": _pod(place)}, "networkPolicyManagement": "Unmanaged"}
    size = {"replicas": replicas, "sandboxTemplateRef": {"name": _POOL}}
    await kube.apply(f"{base}/sandboxtemplates/{_POOL}", _object("SandboxTemplate", _POOL, template))
    await kube.apply(f"{base}/sandboxwarmpools/{_POOL}", _object("SandboxWarmPool", _POOL, size))
    theirs = Theirs(kube, namespace)
    listening = asyncio.create_task(theirs.listen())
    await asyncio.sleep(0.5)  # the watch has begun
    try:
        yield theirs
    finally:
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        # The pool first: it would replace what is deleted.
        for kind in ("sandboxwarmpools", "sandboxclaims"):
            await kube.delete(f"{base}/{kind}")


def is_ready(status: Mapping[str, Any]) -> bool:
    """Whether a claim has its sandbox."""
    conditions = status.get("conditions") or []
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and bool((status.get("sandbox") or {}).get("name"))


def _pod(place: Place) -> Object:
    """What our broker makes, with a command that waits instead of the daemon."""
    container: Object = {
        "name": "sandbox",
        "image": IMAGE,
        "command": ["sleep", "infinity"],
        "resources": RESOURCES,
    }
    return restricted_spec(container, terminationGracePeriodSeconds=2, enableServiceLinks=False) | place.pod


def _object(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": _GROUP, "kind": kind, "metadata": {"name": name}, "spec": spec}
