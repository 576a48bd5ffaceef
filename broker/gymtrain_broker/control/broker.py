"""Answers the requests of clients, from what the controller knows."""

import asyncio
from collections.abc import Callable

from gymtrain_api.sandboxes import Announced, Announcement, Sandbox, SandboxList, SandboxRequest, SandboxState
from gymtrain_api.times import to_text_with_milliseconds
from gymtrain_broker.control.controller import Controller
from gymtrain_broker.control.daemons import Daemons
from gymtrain_broker.errors import (
    ConflictingKeyError,
    NeverError,
    QueueFullError,
    UnavailableError,
    UnknownError,
)
from gymtrain_broker.objects.leases import Found
from gymtrain_broker.policy.claims import Claim, new_id
from gymtrain_broker.policy.shapes import PodShapes
from gymtrain_broker.settings import Settings

_SYNC_SECONDS = 10.0
_CLOSE_SECONDS = 20.0
_ROOT = {"root", "0", "0:0", "root:root"}


class Broker:
    """Turns requests into claims, and claims into the documents that clients get."""

    def __init__(
        self,
        settings: Settings,
        shapes: PodShapes,
        controller: Controller,
        daemons: Daemons,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._shapes = shapes
        self._controller = controller
        self._state = controller.state
        self._daemons = daemons
        self._clock = clock

    async def ask(self, request: SandboxRequest) -> tuple[Claim, bool]:
        """Returns the claim of a request, and whether it is new.

        Raises:
            ConflictingKeyError, NeverError, QueueFullError: it can't be taken.
            UnavailableError: the pods are not known yet, so neither are the keys that they carry.
        """
        await self._synced()
        state, spec, now = self._state, self._settings.spec, self._clock()
        if request.key is not None and (known := state.keys.get(request.key)) is not None:
            claim = state.claims[known]
            if claim.request.image != request.image:
                raise ConflictingKeyError(
                    f"key {request.key} belongs to a sandbox of {claim.request.image}: use another key for "
                    f"{request.image}"
                )
            return claim, False
        if request.user in _ROOT and not spec.root:
            raise NeverError(
                "sandboxes of this run have no root user: set spec.sandboxes.root: true, or leave user out"
            )
        if too_much := self._shapes.above_ceilings(request.resources):
            raise NeverError(
                f"resources: {', '.join(too_much)}: request less, or raise spec.sandboxes.maxResources and the chart's "
                "sandboxes.maxResources"
            )
        if len(state.queue) >= spec.max_queued and len(state.active) >= spec.max_concurrent:
            raise QueueFullError(
                f"{len(state.queue)} requests already wait (spec.sandboxes.maxQueued): ask again later, or raise "
                "maxConcurrent"
            )
        both = request.timeout_seconds
        claim = Claim(
            id=new_id(),
            request=request,
            shape=self._shapes.of(request.image, request.resources),
            asked_at=now,
            ttl=min(request.ttl_seconds or spec.timeout_seconds, spec.timeout_seconds),
            turn_by=now + (both or spec.queue_timeout_seconds),
            start_seconds=both or spec.start_timeout_seconds,
            waited_at=now,
        )
        self._controller.submit(claim)
        return claim, True

    def find(self, id_: str) -> Claim:
        """Returns the claim with that id.

        Raises:
            UnknownError: there is none.
        """
        claim = self._state.claims.get(id_)
        if claim is None:
            raise UnknownError(
                f"there is no sandbox {id_}: it ended a while ago, or the broker was restarted while it was "
                "queued. Ask for it again with the same key"
            )
        return claim

    async def close(self, id_: str) -> None:
        """Ends a sandbox. One that is unknown or closed already is no error.

        Raises:
            UnavailableError: its pod could not be released yet; the broker goes on trying.
        """
        await self._synced()
        claim = self._state.claims.get(id_)
        if claim is not None and not await self._controller.close(claim, _CLOSE_SECONDS):
            raise UnavailableError(f"pod {claim.pod} is not deleted yet: close the sandbox again, or leave it to us")

    def announce(self, announcement: Announcement) -> Announced:
        """Takes in the tasks that come next. No sandbox is made ahead for those whose request will be refused."""
        allowed = [task for task in announcement.tasks if not self._shapes.above_ceilings(task.resources)]
        self._controller.announce(allowed)
        ahead = min(len(allowed), self._settings.spec.look_ahead.tasks)
        return Announced(accepted=len(announcement.tasks), ahead=ahead)

    def document(self, claim: Claim) -> Sandbox:
        """Returns what clients see of a claim."""
        request, pod = claim.request, self._state.pods.get(claim.pod)
        running = claim.state is SandboxState.RUNNING and pod is not None
        answered = self._state.ready.get(claim.pod) if running else None
        reason, message = claim.reason, claim.message
        if claim.state is SandboxState.STARTING and pod is not None and pod.trouble is not None:
            reason, message = pod.trouble.reason, pod.trouble.message
        return Sandbox(
            id=claim.id,
            state=claim.state,
            position=self._state.queue.position(claim.id),
            reason=reason,
            message=message,
            image=request.image,
            task=request.task,
            key=request.key,
            workdir=request.workdir,
            env=request.env,
            user=request.user,
            entrypoint=request.entrypoint,
            ports=request.ports,
            metadata=request.metadata,
            url=self._daemons.url(pod) if running and pod else None,
            token=self._daemons.token(pod) if running and pod else None,
            instance=answered.instance or None if answered else None,
            warm=claim.found is Found.READY,
            created_at=to_text_with_milliseconds(claim.asked_at),
            ready_at=None if claim.ready_at is None else to_text_with_milliseconds(claim.ready_at),
            expires_at=None if claim.expires_at is None else to_text_with_milliseconds(claim.expires_at),
            pod_name=(pod.pod_name if pod else "") or claim.pod or None,
        )

    def listing(self) -> SandboxList:
        """Returns all sandboxes that are not final, the oldest first."""
        open_ = sorted((one for one in self._state.claims.values() if not one.final), key=lambda one: one.asked_at)
        return SandboxList(sandboxes=[self.document(one) for one in open_])

    async def _synced(self) -> None:
        try:
            async with asyncio.timeout(_SYNC_SECONDS):
                await self._controller.synced.wait()
        except TimeoutError:
            raise UnavailableError("the broker has no answer from the API server yet: ask again in a moment") from None
