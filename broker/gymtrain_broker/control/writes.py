"""Writes to the API server that have to end well: tried again until they did, or until nobody wants them any more.

A write whose answer got lost may have been done. So after such a failure the pod itself is asked.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from gymtrain_api import labels
from gymtrain_api.sandboxes import SandboxRequest
from gymtrain_broker.backends.backend import Backend
from gymtrain_broker.objects.leases import Lease, lease_patch
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_kube.errors import ConflictError, KubeError, NotFoundError, RejectedError, UnreachableError

type Object = dict[str, Any]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_DELETE_TRIES = 4


class Writes:
    """Leases, makes and deletes pods."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.sandbox = backend.sandbox
        self.pressed = backend.pressed

    async def lease(
        self, pod: SandboxPod, lease: Lease, request: SandboxRequest, on_problem: Callable[[KubeError], bool]
    ) -> Object | None:
        """The pod with the lease, or as it really is if somebody else was faster; None where it is gone.

        `on_problem` is told of each failure that may pass, and says whether to go on.

        Raises:
            KubeError: it was refused, or `on_problem` said no.
        """
        operations = lease_patch(pod.claim, lease, request)
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._leased(pod.name, operations)
            except UnreachableError as error:
                if not on_problem(error):
                    raise
            pause = await _rest(pause)

    async def make(self, manifest: Object, on_problem: Callable[[KubeError], bool]) -> Object:
        """The pod that was made. For somebody who waits.

        Raises:
            KubeError: as `lease`.
        """
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._made(manifest)
            except RejectedError as error:
                if not error.over_quota or not on_problem(error):
                    raise
            except UnreachableError as error:
                if not on_problem(error):
                    raise
            pause = await _rest(pause)

    async def make_ahead(self, manifest: Object) -> Object:
        """One try: there is always another round.

        Raises:
            KubeError: it failed.
        """
        return await self._backend.create(manifest, urgent=False)

    async def delete(self, name: str, uid: str, *, urgent: bool) -> None:
        """Deletes a pod.

        Raises:
            KubeError: no try succeeded.
        """
        pause = _FIRST_PAUSE
        for left in reversed(range(_DELETE_TRIES)):
            try:
                await self._backend.delete(name, uid, urgent=urgent)
                break
            except UnreachableError:
                if not left:
                    raise
            pause = await _rest(pause)

    async def _leased(self, name: str, operations: list[Object]) -> Object | None:
        try:
            return await self._backend.patch(name, operations)
        except NotFoundError:
            return None
        except ConflictError:
            return await self._found(name)

    async def _made(self, manifest: Object) -> Object:
        try:
            return await self._backend.create(manifest, urgent=True)
        except ConflictError:
            found = await self._found(manifest["metadata"]["name"])
            if found is None or not _same_claim(found, manifest):
                raise
            return found  # made by a try whose answer got lost

    async def _found(self, name: str) -> Object | None:
        try:
            return await self._backend.get(name)
        except NotFoundError:
            return None


def _same_claim(one: Object, other: Object) -> bool:
    first, second = ((each["metadata"].get("annotations") or {}).get(labels.SANDBOX_CLAIM) for each in (one, other))
    return bool(first == second)


async def _rest(pause: float) -> float:
    await asyncio.sleep(pause)
    return min(pause * 2, _LONGEST_PAUSE)
