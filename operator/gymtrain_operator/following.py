"""Following what runs own: watches, each of which goes on from where the last one ended.

kopf watches the runs themselves (decision 4). It tells a handler neither that it listed anew nor what vanished
meanwhile, and a cache has to know both (decision 38).
"""

import asyncio
import random
from collections.abc import Sequence

from gymtrain_kube.errors import ExpiredError, KubeError
from gymtrain_operator import kinds, metrics
from gymtrain_operator.child_cache import ChildCache
from gymtrain_operator.kinds import Kind
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.log import logger

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_WORKED_SECONDS = 20.0  # longer than it takes to find that there is no connection: what broke after that had worked
_LEAST_SECONDS = 1.0  # between two watches, where something between us and the API server ends them


class Follower:
    """Keeps one kind of one namespace, or of all, in the cache."""

    def __init__(self, cluster: KubeClient, cache: ChildCache, kind: Kind, namespace: str | None) -> None:
        self._cluster = cluster
        self._cache = cache
        self._kind = kind
        self._namespace = namespace
        self._version = ""  # to watch from; empty: from now
        self.began = asyncio.Event()

    async def follow(self) -> None:
        """Follows without end. While it can't, the cache says so, and readers ask the API server."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            began = clock()
            try:
                await self._once()
                failures = 0
            except ExpiredError:
                self._lose()
            except KubeError as error:
                failures = 1 if clock() - began > _WORKED_SECONDS else failures + 1
                if failures > 1:  # else the next watch goes on in a moment, from where this one broke
                    self._lose()
                pause = min(_FIRST_PAUSE * 2.0 ** min(failures - 1, 10), _LONGEST_PAUSE)
                where = self._namespace or "all"
                logger().warning("no watch", kind=self._kind.name, namespace=where, error=str(error), next_in=pause)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311

    def _lose(self) -> None:
        self._version = ""
        self._cache.lose(self._kind, self._namespace)

    async def _once(self) -> None:
        """Watches until the API server ends it."""
        if not self._version:
            self._version = await self._cluster.version(self._kind, self._namespace, kinds.CHILD_SELECTOR)
            metrics.WATCH_STARTS.labels(self._kind.name).inc()
            self._cache.begin(self._kind, self._namespace)
            self.began.set()
        began = asyncio.get_running_loop().time()
        async for event, item in self._cluster.watch(self._kind, self._namespace, kinds.CHILD_SELECTOR, self._version):
            if event == "DELETED":
                self._cache.remove(self._kind, item)
            elif event != "BOOKMARK":
                self._cache.put(self._kind, item)
            self._version = str(item["metadata"].get("resourceVersion") or self._version)
        rest = _LEAST_SECONDS - (asyncio.get_running_loop().time() - began)
        if rest > 0:
            await asyncio.sleep(rest)


def followers(cluster: KubeClient, cache: ChildCache, namespaces: Sequence[str]) -> list[Follower]:
    """Returns one for each kind that runs own, of each namespace, or of all where there are none."""
    scopes: list[str | None] = [*namespaces] or [None]
    return [Follower(cluster, cache, kind, scope) for scope in scopes for kind in kinds.CHILDREN]
