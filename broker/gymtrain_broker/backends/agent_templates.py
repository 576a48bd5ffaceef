"""What SandboxClaims refer to: one SandboxTemplate and one SandboxWarmPool for each shape of sandbox.

Both are made before the first SandboxClaim of their shape. Where each task brings an image of its own there would soon
be thousands of them: of those that no SandboxClaim refers to, the ones that were used last stay; the rest is removed.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress

from gymtrain_api import agent_sandbox
from gymtrain_broker.backends import agent_objects
from gymtrain_broker.objects import sandbox_pod
from gymtrain_broker.policy.shapes import PodShape
from gymtrain_broker.settings import Settings
from gymtrain_broker.throttled_client import ThrottledClient
from gymtrain_kube.errors import ConflictError, KubeError

MOST_IDLE = 128  # that stay though no SandboxClaim refers to them


class AgentTemplates:
    """Of one run. Template and pool of a shape have the same name."""

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
        """Somebody deleted it: the next SandboxClaim makes it again."""
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
