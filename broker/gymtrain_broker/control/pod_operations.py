"""Does to pods what was decided: lease, make, reset, delete. Each piece of work is a task that ends by itself."""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from gymtrain_api import names
from gymtrain_api.sandboxes import Reason, SandboxState
from gymtrain_broker.control.daemons import Daemons
from gymtrain_broker.control.writes import Writes
from gymtrain_broker.metrics import Metrics
from gymtrain_broker.objects import pod_view
from gymtrain_broker.objects.leases import Found, Lease, MadeFor
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.policy.claims import Claim
from gymtrain_broker.policy.plan import ClaimEnd, Want
from gymtrain_broker.policy.state import Busy, Doing, State
from gymtrain_broker.settings import Settings
from gymtrain_kube.errors import KubeError, RejectedError

logger = logging.getLogger(__name__)

_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_SUFFIX = 10


class Host(Protocol):
    """Whom the work reports to."""

    def seen(self, pod: dict[str, Any]) -> None:
        """A pod as the API server answered."""

    def gone(self, pod: dict[str, Any]) -> None:
        """A pod that is no more."""

    def ready_now(self, name: str) -> None:
        """A pod may be what its claim waits for."""

    def requeue(self, claim: Claim) -> None:
        """The pod chosen for a claim is somebody else's."""

    def finish(self, claim: Claim, end: ClaimEnd) -> None:
        """A claim can't be met."""


class PodOperations:
    """Work on pods."""

    def __init__(
        self, settings: Settings, state: State, writes: Writes, daemons: Daemons, metrics: Metrics, host: Host
    ) -> None:
        self._settings = settings
        self._state = state
        self._writes = writes
        self._daemons = daemons
        self._metrics = metrics
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: dict[str, asyncio.Task[None]] = {}
        self.releases: dict[str, asyncio.Task[None]] = {}
        self.making: Counter[str] = Counter()  # pods being made ahead, by shape

    async def settle(self, seconds: float) -> None:
        """Waits for the work under way."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in list(self._tasks):
            task.cancel()

    def serve(self, claim: Claim, pod: SandboxPod | None, now: float) -> None:
        """A claim has its turn: it gets `pod`, or a new one."""
        state = self._state
        if pod is None:
            claim.found = Found.NONE
            state.hold(claim, names.sandbox(self._settings.run, new_suffix()))
            work = self._make(claim, now)
        else:
            ready = state.is_ready(pod)
            claim.found = Found.READY if ready else Found.STARTING
            state.hold(claim, pod.name)
            state.busy[pod.name] = Busy(Doing.LEASING, now)
            lease = self._lease(claim, now, 0.0 if ready else claim.start_seconds, pod.restarts)
            work = self._take(claim, pod, lease)
        self._keep(self._serving, claim.id, work)

    def release(self, claim: Claim, *, keep: bool, now: float) -> asyncio.Task[None]:
        """Frees the pod of a final claim: by starting it anew where it is to be kept, else by deleting it."""
        known = self.releases.get(claim.id)
        return known or self._keep(self.releases, claim.id, self._free(claim, now, keep=keep))

    def make_ahead(self, want: Want, on_failure: Callable[[KubeError], None]) -> None:
        """A free pod."""
        self.making[want.shape.key] += 1
        self._start(self._ahead(want, on_failure))

    def delete(self, pod: SandboxPod, now: float, *, urgent: bool) -> None:
        """Deletes a pod that no claim holds."""
        self._state.busy[pod.name] = Busy(Doing.DELETING, now)
        self._start(self._remove(pod, urgent=urgent))

    async def _take(self, claim: Claim, pod: SandboxPod, lease: Lease) -> None:
        try:
            found = await self._writes.lease(pod, lease, claim.request, self._noting(claim))
        except KubeError as error:
            self._state.busy.pop(pod.name, None)
            self._refused(claim, error)
            return
        self._state.busy.pop(pod.name, None)
        if found is None:
            self._host.gone({"metadata": {"name": pod.name}})
        now_is = None if found is None else pod_view.read(found)
        if now_is is None or now_is.claim != claim.id or now_is.lost:
            if now_is is not None:
                self._state.put(now_is)
            if not claim.final:
                self._host.requeue(claim)
        else:
            self._turned(claim)
        if found is not None:
            self._host.seen(found)
            self._host.ready_now(pod.name)

    async def _make(self, claim: Claim, now: float) -> None:
        manifest = self._writes.sandbox(
            claim.shape,
            claim.request.image,
            claim.pod,
            made_for=MadeFor.CLAIM,
            lease=self._lease(claim, now, claim.start_seconds, 0),
            request=claim.request,
        )
        try:
            found = await self._writes.make(manifest, self._noting(claim))
        except KubeError as error:
            self._refused(claim, error)
            if not isinstance(error, RejectedError):
                await self._delete_name(claim.pod)  # a try whose answer got lost may have made it
            return
        self._metrics.made.labels(MadeFor.CLAIM).inc()
        self._turned(claim)
        self._host.seen(found)
        self._host.ready_now(claim.pod)

    async def _ahead(self, want: Want, on_failure: Callable[[KubeError], None]) -> None:
        name = names.sandbox(self._settings.run, new_suffix())
        shape = want.shape
        manifest = self._writes.sandbox(shape, shape.asked, name, made_for=want.made_for)
        try:
            found = await self._writes.make_ahead(manifest)
            self._metrics.made.labels(want.made_for).inc()
            self._host.seen(found)
        except KubeError as error:
            on_failure(error)
        finally:
            self.making[shape.key] -= 1

    async def _free(self, claim: Claim, now: float, *, keep: bool) -> None:
        serving = self._serving.get(claim.id)
        if serving is not None:
            await asyncio.wait([serving])
        pod = self._state.pods.get(claim.pod)
        if pod is None or pod.claim != claim.id or pod.deleting:
            return
        if pod.leased is None and pod.clean:
            return  # it has been started anew already
        if keep and pod.leased is not None:
            self._state.busy[pod.name] = Busy(Doing.RESETTING, now, pod.restarts)
            if await self._daemons.reset(pod):
                claim.released = True
                self._metrics.resets.inc()
                return
        self._state.busy[pod.name] = Busy(Doing.DELETING, now)
        claim.released = await self._delete(pod, urgent=True)

    async def _remove(self, pod: SandboxPod, *, urgent: bool) -> None:
        await self._delete(pod, urgent=urgent)

    async def _delete(self, pod: SandboxPod, *, urgent: bool) -> bool:
        try:
            await self._writes.delete(pod.name, pod.uid, urgent=urgent)
        except KubeError as error:
            logger.warning("can't delete pod %s yet: %s", pod.name, error)
            self._state.busy.pop(pod.name, None)  # the next round tries again
            return False
        return True

    async def _delete_name(self, name: str) -> None:
        try:
            await self._writes.delete(name, "", urgent=True)
        except KubeError as error:
            logger.warning("can't delete pod %s, if it exists: %s", name, error)

    def _lease(self, claim: Claim, now: float, start_seconds: float, restarts: int) -> Lease:
        return Lease(claim.id, claim.asked_at, now, claim.ttl, start_seconds, restarts, claim.found)

    def _turned(self, claim: Claim) -> None:
        self._metrics.claims.labels(claim.found).inc()
        self._metrics.queue_seconds.observe(max(0.0, (claim.leased_at or claim.asked_at) - claim.asked_at))

    def _noting(self, claim: Claim) -> Callable[[KubeError], bool]:
        def note(error: KubeError) -> bool:
            claim.message = str(error)
            return not claim.final

        return note

    def _refused(self, claim: Claim, error: KubeError) -> None:
        text = f"the API server refuses the sandbox's pod: {error}. See spec.sandboxes, and the namespace's policies"
        self._host.finish(claim, ClaimEnd(SandboxState.FAILED, Reason.REJECTED, text))

    def _keep(
        self, tasks: dict[str, asyncio.Task[None]], name: str, work: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        task = self._start(work)
        tasks[name] = task
        task.add_done_callback(lambda done: tasks.pop(name, None) if tasks.get(name) is done else None)
        return task

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("work on a pod broke", exc_info=task.exception())


def new_suffix() -> str:
    """Of a pod's name."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_SUFFIX))
