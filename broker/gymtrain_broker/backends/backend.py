"""What sandboxes are made of: the seam between the broker's decisions and the cluster's objects, and the backend `Pod`.

A backend shows each sandbox as a pod, whatever the object is that carries its lease, so that all decisions are the
same: annotations hold the lease, the status is that of the pod. `backing`, beside `metadata`, names the pod where it
has another name than that object.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from gymtrain_api.sandboxes import SandboxRequest
from gymtrain_broker.objects import sandbox_pod
from gymtrain_broker.objects.leases import Lease, MadeFor
from gymtrain_broker.policy.shapes import PodShape
from gymtrain_broker.settings import Settings
from gymtrain_broker.throttled_client import ThrottledClient
from gymtrain_kube.objects import Object


class Backend(Protocol):
    """Sandboxes of one run in the cluster. Every failure is one of `gymtrain_kube.errors.KubeError`."""

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
        """The manifest of one sandbox. With a lease it belongs to that request from its first moment."""

    def pressed(self) -> bool:
        """Whether urgent writes are slow at the moment."""

    async def close(self) -> None:
        """Ends all connections."""

    async def list_all(self) -> tuple[list[Object], str]:
        """All sandboxes, and the version to watch from."""

    def watch(self, version: str) -> AsyncIterator[tuple[str, Object]]:
        """What changes after `version`: (ADDED, MODIFIED, DELETED or BOOKMARK, sandbox). Ends after a minute.

        Raises:
            ExpiredError: the API server no longer knows that version.
            UnreachableError: the connection broke, or fell silent.
        """

    async def get(self, name: str) -> Object:
        """One sandbox."""

    async def create(self, manifest: Object, *, urgent: bool) -> Object:
        """Makes a sandbox; ConflictError where the name is taken."""

    async def patch(self, name: str, operations: list[Object]) -> Object:
        """Applies a JSON patch to its metadata; ConflictError where one of its tests fails."""

    async def delete(self, name: str, uid: str, *, urgent: bool) -> None:
        """Deletes that very sandbox; one that is gone, or is another by now, is left alone."""


class PodBackend:
    """Backend `Pod`: sandboxes that are bare pods, each of which carries its own lease."""

    def __init__(self, kube: ThrottledClient, settings: Settings) -> None:
        self._kube = kube
        self._settings = settings
        self._pods = f"/api/v1/namespaces/{settings.namespace}/pods"
        self._selector = sandbox_pod.selector(settings.run)

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
        """The pod."""
        return sandbox_pod.pod(
            self._settings, shape.key, image, shape.body, name, made_for=made_for, lease=lease, request=request
        )

    def pressed(self) -> bool:
        """Yields changes as the API server reports them."""
        return self._kube.pressed()

    async def close(self) -> None:
        """Ends all connections."""
        await self._kube.close()

    async def list_all(self) -> tuple[list[Object], str]:
        """All pods, and the resourceVersion to watch from. Pods that only look like ours are left out."""
        found, version = await self._kube.list_all(self._pods, self._selector)
        return [pod for pod in found if sandbox_pod.made_here(self._settings, pod)], version

    async def watch(self, version: str) -> AsyncIterator[tuple[str, Object]]:
        """What happens to the pods after that version; of those that only look like ours, no more than the version."""
        async for kind, item in self._kube.watch(self._pods, self._selector, version):
            seen = kind in ("ADDED", "MODIFIED") and not sandbox_pod.made_here(self._settings, item)
            yield ("BOOKMARK" if seen else kind), item

    async def get(self, name: str) -> Object:
        """One pod."""
        return await self._kube.get(f"{self._pods}/{name}")

    async def create(self, manifest: Object, *, urgent: bool) -> Object:
        """Makes a pod."""
        return await self._kube.create(self._pods, manifest, urgent=urgent)

    async def patch(self, name: str, operations: list[Object]) -> Object:
        """Changes a pod's annotations."""
        return await self._kube.patch(f"{self._pods}/{name}", operations)

    async def delete(self, name: str, uid: str, *, urgent: bool) -> None:
        """Deletes a pod."""
        await self._kube.delete(f"{self._pods}/{name}", uid, urgent=urgent)
