"""What claims of agent-sandbox refer to: one SandboxTemplate and one SandboxWarmPool for each shape of sandbox.

Both are made before the first claim of their shape. Where each task brings an image of its own there would soon be
thousands of them: of those that no claim refers to, some stay, and the ones that were used longest ago are removed.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from gymtrain_api import agent_sandbox
from gymtrain_broker import agent_objects, pods
from gymtrain_broker.errors import ClusterError, LostError
from gymtrain_broker.kube import Kube
from gymtrain_broker.settings import Settings
from gymtrain_broker.shapes import Shape

type Object = dict[str, Any]

MOST_IDLE = 128  # that stay though no claim refers to them


class AgentTemplates:
    """Of one run."""

    def __init__(self, kube: Kube, settings: Settings, extensions: str) -> None:
        """`extensions`: path of agent-sandbox's kinds in the run's namespace."""
        self._kube = kube
        self._settings = settings
        self._templates, self._pools = (
            f"{extensions}/{plural}" for plural in (agent_sandbox.TEMPLATES, agent_sandbox.POOLS)
        )
        self._to_make: dict[str, tuple[Object, Object]] = {}  # template and pool, by the name that both have
        self._there: dict[str, None] = {}  # names, in the order of their last use
        self._going: dict[str, asyncio.Event] = {}
        self._name_of: dict[str, str] = {}  # by shape
        self._listed = False

    async def list_all(self) -> None:
        """Learns, once, what the broker before this one made. A pool is made after its template, and goes before it."""
        if not self._listed:
            found, _ = await self._kube.list_all(self._pools, pods.selector(self._settings.run))
            by_age = sorted(found, key=lambda one: str(one["metadata"].get("creationTimestamp")))
            self._there = dict.fromkeys(one["metadata"]["name"] for one in by_age) | self._there
            self._listed = True

    def pool(self, shape: Shape) -> str:
        """Name of a shape's pool. `make` sees to it that it is there."""
        name = self._name_of.get(shape.key)
        if name is None or name not in self._there:
            template = agent_objects.template(self._settings, shape)
            name = self._name_of[shape.key] = template["metadata"]["name"]
            if name not in self._there:
                self._to_make[name] = template, agent_objects.pool(self._settings, template)
        if name in self._there:
            self._there[name] = self._there.pop(name)
        return name

    async def make(self, name: str, *, urgent: bool) -> None:
        """Makes a pool and its template, unless they are there.

        Raises:
            ClusterError: the API server didn't take them.
        """
        while (going := self._going.get(name)) is not None:
            await going.wait()
        if name in self._there or (parts := self._to_make.get(name)) is None:
            return
        for path, part in zip((self._templates, self._pools), parts, strict=True):
            with suppress(LostError):  # made before: by another task
                await self._kube.create(path, part, urgent=urgent)
        self._there[name] = None
        self._to_make.pop(name, None)

    def vanished(self, name: str) -> None:
        """Somebody deleted it: the next claim makes it anew."""
        self._there.pop(name, None)

    async def prune(self, in_use: Collection[str]) -> None:
        """Removes those beyond the idle ones that may stay. What can't be removed now is tried again next time."""
        idle = [name for name in self._there if name not in in_use]
        for name in idle[: max(0, len(idle) - MOST_IDLE)]:
            if name not in self._there:  # by another task, meanwhile
                continue
            del self._there[name]
            going = self._going[name] = asyncio.Event()
            try:
                for path in (self._pools, self._templates):
                    await self._kube.delete(f"{path}/{name}", "", urgent=False)
            except ClusterError:
                self._there = {name: None} | self._there
            finally:
                del self._going[name]
                going.set()
