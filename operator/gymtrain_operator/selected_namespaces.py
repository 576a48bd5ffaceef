"""The namespaces that a label selector picks, followed. Runs of the others are another operator's, or nobody's.

kopf watches the runs of all namespaces then, since it knows namespaces by name alone; what it tells of others is
passed over. A namespace whose labels no longer match is left as it is: another operator may go on with its runs.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

from gymtrain_kube.errors import ExpiredError, KubeError, RejectedError
from gymtrain_operator import kinds
from gymtrain_operator.errors import BadSelectorError
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.log import logger

_PAUSE_SECONDS = 5.0
_LEAST_SECONDS = 1.0  # between two lists, where something between us and the API server ends the watches


class SelectedNamespaces:
    """Asked by name: `namespace in selected`. Nobody's until it `began`."""

    def __init__(self, cluster: KubeClient, selector: str) -> None:
        self._cluster = cluster
        self._selector = selector
        self._names: frozenset[str] = frozenset()
        self.began = asyncio.Event()

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._names

    async def follow(self, on_change: Callable[[str], Awaitable[object]]) -> None:
        """Follows without end; `on_change` is told the name of each namespace that begins or ceases to be one of them.
        While there is no watch, those that were known last stay.

        Raises:
            BadSelectorError: the API server doesn't know what the selector means.
        """
        while True:
            pause = _LEAST_SECONDS
            try:
                await self._once(on_change)
            except ExpiredError:
                pass
            except KubeError as error:
                if isinstance(error, RejectedError) and error.final:
                    raise BadSelectorError(f"--namespace-selector={self._selector}: {error}") from None
                pause = _PAUSE_SECONDS * random.uniform(0.5, 1.0)  # noqa: S311
                logger().warning("no watch", kind=kinds.NAMESPACE.name, error=str(error), next_in=pause)
            await asyncio.sleep(pause)

    async def _once(self, on_change: Callable[[str], Awaitable[object]]) -> None:
        """Lists, and watches until the API server ends that."""
        names, version = await self._cluster.names(kinds.NAMESPACE, self._selector)
        await self._become(names, on_change)
        self.began.set()
        async for event, item in self._cluster.watch(kinds.NAMESPACE, None, self._selector, version):
            name = {item["metadata"].get("name", "")}  # a bookmark has none
            if event in ("ADDED", "DELETED"):
                await self._become(self._names | name if event == "ADDED" else self._names - name, on_change)

    async def _become(self, names: frozenset[str], on_change: Callable[[str], Awaitable[object]]) -> None:
        changed, self._names = self._names ^ names, names
        for name in sorted(changed):
            await on_change(name)
