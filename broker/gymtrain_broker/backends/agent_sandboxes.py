"""Sandboxes that agent-sandbox makes: a SandboxClaim carries the lease, and its controller makes the pod.

SandboxClaims are made ahead as pods would be, and leased by the same one patch. Nothing else is written but the
template and the pool that each shape has; pods are watched. agent-sandbox replaces a deleted pod by an empty one of
the same name: such a sandbox counts as lost.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress

from gymtrain_api import agent_sandbox
from gymtrain_api.sandboxes import SandboxRequest
from gymtrain_broker.backends import agent_objects
from gymtrain_broker.objects import sandbox_pod
from gymtrain_broker.objects.leases import Lease, MadeFor
from gymtrain_broker.policy.shapes import PodShape
from gymtrain_broker.settings import Settings
from gymtrain_broker.throttled_client import ThrottledClient
from gymtrain_kube.errors import ConflictError, KubeError
from gymtrain_kube.objects import Object

MOST_IDLE = 128  # templates that stay though no SandboxClaim refers to them
_SANDBOX_CLAIMS, _PODS = "sandboxclaims", "pods"
_VANISHED = {"WarmPoolNotFound", "TemplateNotFound"}


class AgentSandboxBackend:
    """Backend `AgentSandbox`."""

    def __init__(self, kube: ThrottledClient, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._kube = kube
        self._settings = settings
        self._clock = clock
        extensions = f"{agent_sandbox.PATH}/namespaces/{settings.namespace}"
        self._paths = {
            _SANDBOX_CLAIMS: f"{extensions}/{agent_sandbox.CLAIMS}",
            _PODS: f"/api/v1/namespaces/{settings.namespace}/pods",
        }
        self._templates = AgentTemplates(kube, settings, extensions)
        self._selector = sandbox_pod.selector(settings.run)
        self._places: dict[str, str] = {}  # where each watch goes on
        self._sandbox_claims: dict[str, Object] = {}
        self._pods: dict[str, Object] = {}
        self._holders: dict[str, str] = {}  # SandboxClaim by name of its pod
        self._bound: dict[str, str] = {}  # uid of the first pod, by uid of the SandboxClaim
        self._lost: set[str] = set()  # SandboxClaims, by uid

    def sandbox(
        self,
        shape: PodShape,
        image: str,
        name: str,
        *,
        made_for: MadeFor,
        lease: Lease | None = None,
        request: SandboxRequest | None = None,
    ) -> Object:
        """The SandboxClaim; what it refers to is made with it."""
        pool = self._templates.pool(shape)
        return agent_objects.sandbox_claim(
            self._settings, shape, image, name, pool, self._clock(), made_for=made_for, lease=lease, request=request
        )

    def pressed(self) -> bool:
        """Yields changes as the API server reports them."""
        return self._kube.pressed()

    async def close(self) -> None:
        """Ends all connections."""
        await self._kube.close()

    async def list_all(self) -> tuple[list[Object], str]:
        """All sandboxes. SandboxClaims first: a pod that is younger than its SandboxClaim is then known with it."""
        await self._templates.list_all()
        sandbox_claims, as_of = await self._kube.list_all(self._paths[_SANDBOX_CLAIMS], self._selector)
        found, self._places[_PODS] = await self._kube.list_all(self._paths[_PODS], self._selector)
        self._places[_SANDBOX_CLAIMS] = as_of
        listed = {one["metadata"]["name"] for one in sandbox_claims}
        for name, known in list(self._sandbox_claims.items()):
            if name not in listed and _version(known) <= int(as_of or 0):
                self._forget(name)
        self._pods = {pod["metadata"]["name"]: pod for pod in found}
        return [self._join(self._note(one)) for one in sandbox_claims], as_of

    async def watch(self, version: str) -> AsyncGenerator[tuple[str, Object]]:
        """What happens to sandboxes: two watches in one, each of which goes on from a place of its own."""
        events: asyncio.Queue[tuple[str, str, Object] | Exception | None] = asyncio.Queue()

        async def pump(what: str) -> None:
            try:
                async for kind, item in self._kube.watch(self._paths[what], self._selector, self._places[what]):
                    events.put_nowait((what, kind, item))
                events.put_nowait(None)
            except Exception as error:  # it is raised where the events are read
                events.put_nowait(error)

        tasks = [asyncio.create_task(pump(what)) for what in (_SANDBOX_CLAIMS, _PODS)]
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                what, kind, item = event
                shown = self._happened(what, kind, item)
                self._places[what] = str(item["metadata"].get("resourceVersion") or self._places[what])
                yield shown or ("BOOKMARK", {"metadata": {}})
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def get(self, name: str) -> Object:
        """One sandbox."""
        return self._join(self._note(await self._kube.get(f"{self._paths[_SANDBOX_CLAIMS]}/{name}")))

    async def create(self, manifest: Object, *, urgent: bool) -> Object:
        """Makes a SandboxClaim, and before the first one of a shape its template and pool."""
        async with self._templates.needed(_pool_of(manifest), urgent=urgent):
            made = await self._kube.create(self._paths[_SANDBOX_CLAIMS], manifest, urgent=urgent)
            return self._join(self._note(made))

    async def patch(self, name: str, operations: list[Object]) -> Object:
        """Changes a SandboxClaim's annotations."""
        return self._join(self._note(await self._kube.patch(f"{self._paths[_SANDBOX_CLAIMS]}/{name}", operations)))

    async def delete(self, name: str, uid: str, *, urgent: bool) -> None:
        """Deletes a SandboxClaim, which stays on its way out until its pod is gone, and idle templates."""
        await self._kube.delete(f"{self._paths[_SANDBOX_CLAIMS]}/{name}", uid, urgent=urgent, foreground=True)
        await self._templates.prune(lambda: {_pool_of(one) for one in self._sandbox_claims.values()})

    def _happened(self, what: str, kind: str, item: Object) -> tuple[str, Object] | None:
        """The event as one of a sandbox; None if it is none."""
        if kind == "BOOKMARK":
            return None
        name = item["metadata"]["name"]
        if what == _SANDBOX_CLAIMS:
            if kind == "DELETED":
                self._forget(name)
                return kind, item
            return kind, self._join(self._note(item))
        if kind == "DELETED":
            self._pods.pop(name, None)
        else:
            self._pods[name] = item
        holder = self._sandbox_claims.get(self._holders.get(name, name))
        return None if holder is None else ("MODIFIED", self._join(holder))

    def _note(self, sandbox_claim: Object) -> Object:
        """The newest that is known of a SandboxClaim: answers and events overtake each other."""
        name = sandbox_claim["metadata"]["name"]
        known = self._sandbox_claims.get(name)
        if known is not None and _version(known) > _version(sandbox_claim):
            return known
        self._sandbox_claims[name] = sandbox_claim
        self._holders[agent_objects.pod_of(sandbox_claim)] = name
        conditions = (sandbox_claim.get("status") or {}).get("conditions") or []
        if any(one.get("reason") in _VANISHED for one in conditions):
            self._templates.vanished(_pool_of(sandbox_claim))
        return sandbox_claim

    def _forget(self, name: str) -> None:
        sandbox_claim = self._sandbox_claims.pop(name, None)
        if sandbox_claim is not None:
            uid = str(sandbox_claim["metadata"].get("uid") or "")
            self._bound.pop(uid, None)
            self._lost.discard(uid)
            self._holders.pop(agent_objects.pod_of(sandbox_claim), None)

    def _join(self, sandbox_claim: Object) -> Object:
        uid = str(sandbox_claim["metadata"].get("uid") or "")
        pod = self._pods.get(agent_objects.pod_of(sandbox_claim))
        if pod is None:
            lost = uid in self._bound
        else:
            now_is = str(pod["metadata"].get("uid") or "")
            lost = agent_objects.replaced(sandbox_claim, pod) if uid not in self._bound else self._bound[uid] != now_is
            self._bound.setdefault(uid, now_is)
        if lost:
            self._lost.add(uid)
        return agent_objects.joined(self._settings, sandbox_claim, pod, lost=uid in self._lost)


class AgentTemplates:
    """What SandboxClaims refer to: one SandboxTemplate and one SandboxWarmPool, of the same name, for each shape.

    Both are made before the first SandboxClaim of their shape. Where each task brings an image of its own there would
    soon be thousands of them: of those that no SandboxClaim refers to, only the ones that were used last stay.
    """

    def __init__(self, kube: ThrottledClient, settings: Settings, extensions: str) -> None:
        """`extensions`: path of agent-sandbox's kinds in the run's namespace."""
        self._kube = kube
        self._settings = settings
        self._templates, self._pools = (
            f"{extensions}/{plural}" for plural in (agent_sandbox.TEMPLATES, agent_sandbox.POOLS)
        )
        self._shapes: dict[str, PodShape] = {}  # by name
        self._names: dict[str, str] = {}  # by shape
        self._there: dict[str, None] = {}  # names, in the order of their last use
        self._half_gone: dict[str, None] = {}  # names of which the removal failed
        self._going: dict[str, asyncio.Event] = {}  # set when the removal is over
        self._needed: Counter[str] = Counter()  # by SandboxClaims that are being made
        self._listed = False

    async def list_all(self) -> None:
        """Learns, once, what the broker before this one made. A pool is made after its template, and goes before it."""
        if not self._listed:
            found, _ = await self._kube.list_all(self._pools, sandbox_pod.selector(self._settings.run))
            by_age = sorted(found, key=lambda one: str(one["metadata"].get("creationTimestamp")))
            self._there = dict.fromkeys(one["metadata"]["name"] for one in by_age) | self._there
            self._listed = True

    def pool(self, shape: PodShape) -> str:
        """Name of a shape's pool."""
        name = self._names.get(shape.key)
        if name is None:
            name = self._names[shape.key] = agent_objects.template(self._settings, shape)["metadata"]["name"]
            self._shapes[name] = shape
        return name

    @asynccontextmanager
    async def needed(self, name: str, *, urgent: bool) -> AsyncIterator[None]:
        """Makes sure that a pool is there with its template, and stays while a SandboxClaim is made.

        Raises:
            KubeError: the API server didn't take them.
        """
        self._needed[name] += 1
        try:
            await self._make(name, urgent=urgent)
            yield
        finally:
            self._needed[name] -= 1
            if not self._needed[name]:
                del self._needed[name]

    async def _make(self, name: str, *, urgent: bool) -> None:
        while (going := self._going.get(name)) is not None:
            await going.wait()
        if name not in self._there:
            template = agent_objects.template(self._settings, self._shapes[name])
            parts = (template, agent_objects.pool(self._settings, template))
            for path, part in zip((self._templates, self._pools), parts, strict=True):
                with suppress(ConflictError):  # made before: by another task, or not removed yet
                    await self._kube.create(path, part, urgent=urgent)
        self._there.pop(name, None)
        self._there[name] = None
        self._half_gone.pop(name, None)

    def vanished(self, name: str) -> None:
        """Notes that it was deleted, so that the next SandboxClaim makes it again."""
        self._there.pop(name, None)

    async def prune(self, in_use: Callable[[], Collection[str]]) -> None:
        """Removes those beyond the idle ones that may stay. What can't be removed now is tried again next time.

        `in_use`: names that SandboxClaims refer to now. A removal takes a while, and SandboxClaims are made meanwhile.
        """
        for name in list(self._half_gone):
            if name in self._half_gone and name not in self._needed:
                await self._remove(name)
        while len(self._there) > MOST_IDLE:  # else there is nothing to look for, at the end of each sandbox
            surplus = self._surplus(in_use())
            if surplus is None or not await self._remove(surplus):
                break

    def _surplus(self, in_use: Collection[str]) -> str | None:
        idle = [name for name in self._there if name not in in_use and name not in self._needed]
        return idle[0] if len(idle) > MOST_IDLE else None

    async def _remove(self, name: str) -> bool:
        self._there.pop(name, None)
        self._half_gone.pop(name, None)
        going = self._going[name] = asyncio.Event()
        try:
            for path in (self._pools, self._templates):
                await self._kube.delete(f"{path}/{name}", "", urgent=False)
        except KubeError:
            self._half_gone[name] = None
            return False
        finally:
            del self._going[name]
            going.set()
        return True


def _pool_of(sandbox_claim: Object) -> str:
    return str(sandbox_claim["spec"]["warmPoolRef"]["name"])


def _version(item: Object) -> int:
    text = str(item["metadata"].get("resourceVersion") or "")
    return int(text) if text.isdigit() else 0
