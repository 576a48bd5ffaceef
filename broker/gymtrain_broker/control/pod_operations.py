"""Carries out steps on pods. Each returns its outcome; what follows from it is for the controller to say.

A write whose answer got lost may have been done. So after such a failure the pod itself is asked.
"""

import asyncio
from dataclasses import dataclass
from typing import assert_never

from gymtrain_api import labels
from gymtrain_broker.backends.backend import Backend
from gymtrain_broker.control.daemons import Daemons
from gymtrain_broker.objects import pod_view
from gymtrain_broker.objects.leases import MadeFor, lease_patch
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.policy.plan import DeletePod, MakePod, MakePodAhead, ResetPod, Step, TakePod
from gymtrain_kube.errors import ConflictError, KubeError, NotFoundError, RejectedError, UnreachableError
from gymtrain_kube.objects import Object

_DELETE_PAUSES = (0.0, 0.1, 0.2, 0.4)  # before each try


@dataclass(frozen=True)
class Served:
    """The pod is there and carries the claim's lease."""

    step: TakePod | MakePod
    pod: SandboxPod


@dataclass(frozen=True)
class PodTaken:
    """Someone else has the pod, or it is being deleted; None if it is gone."""

    step: TakePod
    pod: SandboxPod | None


@dataclass(frozen=True)
class Refused:
    """The API server doesn't accept the write.

    Attributes:
        maybe_made: a pod of that name may be there nevertheless.
    """

    step: TakePod | MakePod
    message: str
    maybe_made: bool = False


@dataclass(frozen=True)
class Delayed:
    """The API server gave no answer, or has no room now: trying again may help.

    Attributes:
        maybe_made: as `Refused`.
    """

    step: TakePod | MakePod
    message: str
    maybe_made: bool = False


@dataclass(frozen=True)
class MadeAhead:
    """The free pod is there."""

    step: MakePodAhead
    pod: SandboxPod


@dataclass(frozen=True)
class NotMadeAhead:
    """The free pod could not be made. It is tried only once, because no claim waits for it."""

    step: MakePodAhead
    message: str


@dataclass(frozen=True)
class PodReset:
    """The daemon exits, and the kubelet restarts the container."""

    step: ResetPod


@dataclass(frozen=True)
class NotReset:
    """The daemon did not take the reset."""

    step: ResetPod


@dataclass(frozen=True)
class PodDeleted:
    """The API server deletes the pod, or had none."""

    step: DeletePod


@dataclass(frozen=True)
class NotDeleted:
    """The API server took none of several tries."""

    step: DeletePod
    message: str


type Outcome = (
    Served | PodTaken | Refused | Delayed | MadeAhead | NotMadeAhead | PodReset | NotReset | PodDeleted | NotDeleted
)


class PodOperations:
    """Leases, makes, resets and deletes pods."""

    def __init__(self, backend: Backend, daemons: Daemons) -> None:
        self._backend = backend
        self._daemons = daemons

    def pressed(self) -> bool:
        """Whether urgent writes are slow at the moment."""
        return self._backend.pressed()

    async def perform(self, step: Step) -> Outcome:
        """Carries out a step."""
        match step:
            case TakePod():
                return await self._take(step)
            case MakePod():
                return await self._make(step)
            case MakePodAhead():
                return await self._make_ahead(step)
            case ResetPod():
                return PodReset(step) if await self._daemons.reset(step.pod) else NotReset(step)
            case DeletePod():
                return await self._delete(step)
            case _:
                assert_never(step)

    async def _take(self, step: TakePod) -> Outcome:
        try:
            found = await self._leased(step.pod.name, lease_patch(step.pod.claim, step.lease, step.claim.request))
        except UnreachableError as error:
            return Delayed(step, str(error))
        except KubeError as error:
            return Refused(step, str(error))
        pod = None if found is None else pod_view.read(found)
        if pod is None or pod.claim != step.claim.id or pod.lost:
            return PodTaken(step, pod)
        return Served(step, pod)

    async def _leased(self, name: str, operations: list[Object]) -> Object | None:
        """Leases a pod. Returns it as it then is, whoever was faster; None if it is gone."""
        try:
            return await self._backend.patch(name, operations)
        except NotFoundError:
            return None
        except ConflictError:
            return await self._found(name)

    async def _make(self, step: MakePod) -> Outcome:
        claim = step.claim
        manifest = self._backend.sandbox(
            claim.shape,
            claim.request.image,
            step.name,
            made_for=MadeFor.CLAIM,
            lease=step.lease,
            request=claim.request,
        )
        try:
            return Served(step, pod_view.read(await self._made(manifest)))
        except RejectedError as error:
            return Delayed(step, str(error)) if error.over_quota else Refused(step, str(error))
        except UnreachableError as error:
            return Delayed(step, str(error), maybe_made=True)
        except KubeError as error:
            return Refused(step, str(error), maybe_made=True)

    async def _made(self, manifest: Object) -> Object:
        try:
            return await self._backend.create(manifest, urgent=True)
        except ConflictError:
            found = await self._found(manifest["metadata"]["name"])
            if found is None or not _same_claim(found, manifest):
                raise
            return found  # made by a try whose answer got lost

    async def _make_ahead(self, step: MakePodAhead) -> Outcome:
        shape = step.want.shape
        manifest = self._backend.sandbox(shape, shape.asked, step.name, made_for=step.want.made_for)
        try:
            return MadeAhead(step, pod_view.read(await self._backend.create(manifest, urgent=False)))
        except KubeError as error:
            return NotMadeAhead(step, str(error))

    async def _delete(self, step: DeletePod) -> Outcome:
        problem = ""
        for pause in _DELETE_PAUSES:
            await asyncio.sleep(pause)
            try:
                await self._backend.delete(step.name, step.uid, urgent=step.urgent)
            except UnreachableError as error:
                problem = str(error)
            except KubeError as error:
                return NotDeleted(step, str(error))
            else:
                return PodDeleted(step)
        return NotDeleted(step, problem)

    async def _found(self, name: str) -> Object | None:
        try:
            return await self._backend.get(name)
        except NotFoundError:
            return None


def _same_claim(one: Object, other: Object) -> bool:
    first, second = ((each["metadata"].get("annotations") or {}).get(labels.SANDBOX_CLAIM) for each in (one, other))
    return bool(first == second)
