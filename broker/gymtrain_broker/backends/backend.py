"""What sandboxes are made of: the seam between the broker's decisions and the objects of the cluster.

A backend shows each sandbox as a pod, whatever the object is that carries its lease, so that all decisions are the
same: annotations hold the lease, the status is that of the pod. `backing`, beside `metadata`, names the pod where it
has another name than that object.
"""

from collections.abc import AsyncIterator
from typing import Any, Protocol

from gymtrain_api.sandboxes import SandboxRequest
from gymtrain_broker.objects.leases import Lease, MadeFor
from gymtrain_broker.policy.shapes import PodShape

type Object = dict[str, Any]


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
        """Whether writes that somebody waits for are slow at the moment."""

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
