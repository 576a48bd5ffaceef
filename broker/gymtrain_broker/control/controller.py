"""Sees to it that every claim gets its pod and its end, and that free pods are there before they are asked for.

watch ──► seen, gone ──► verdicts on the claim of that pod, at once
request ──► schedule ──► lease or make a pod, at once
every moment ──► step: deadlines, leftovers, refill
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gymtrain_api.sandboxes import Reason, SandboxState
from gymtrain_broker.control.daemon_probe import DaemonProbe
from gymtrain_broker.control.daemons import Daemons
from gymtrain_broker.control.pod_operations import PodOperations
from gymtrain_broker.control.warm_pool import WarmPool
from gymtrain_broker.control.writes import Writes
from gymtrain_broker.metrics import Metrics
from gymtrain_broker.objects import pod_view
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.policy import plan
from gymtrain_broker.policy.claims import Claim, adopted
from gymtrain_broker.policy.plan import ClaimEnd
from gymtrain_broker.policy.pulls import Pulls
from gymtrain_broker.policy.shapes import PodShapes
from gymtrain_broker.policy.state import Doing, State
from gymtrain_broker.settings import Settings

logger = logging.getLogger(__name__)


class Controller:
    """The broker's own doing, beside answering requests."""

    def __init__(
        self,
        settings: Settings,
        state: State,
        shapes: PodShapes,
        writes: Writes,
        daemons: Daemons,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self.state = state
        self._shapes = shapes
        self._metrics = metrics
        self.clock = clock
        self._pulls = Pulls(settings.spec.pre_pull.max_per_registry)
        self.operations = PodOperations(settings, state, writes, daemons, metrics, self)
        self._warm_pool = WarmPool(settings, state, shapes, self.operations, self._pulls, metrics, writes.pressed)
        self.daemon_probe = DaemonProbe(settings, state, daemons, self.ready_now, clock)
        self._wake = asyncio.Event()
        self.synced = asyncio.Event()

    # What the watch tells

    def listed(self, pods: list[dict[str, Any]], version: str) -> None:
        """All pods, as of `version`. One that we made since is newer than the list."""
        names = {pod["metadata"]["name"] for pod in pods}
        as_of = int(version) if version.isdigit() else 0
        for name, known in list(self.state.pods.items()):
            if name not in names and (not as_of or known.version <= as_of):
                self._gone(name)
        for pod in pods:
            self.seen(pod)
        self.synced.set()
        self.schedule()

    def seen(self, pod: dict[str, Any]) -> None:
        """A pod as it is now."""
        found = pod_view.read(pod)
        if not self.state.put(found):
            return
        self._pulls.note(found)
        busy = self.state.busy.get(found.name)
        if busy and busy.doing is Doing.RESETTING and found.restarts > busy.restarts:
            del self.state.busy[found.name]
        self._adopt(found)
        claim = self.state.holders.get(found.name)
        if claim is not None:
            claim.confirmed = claim.confirmed or found.claim == claim.id
            self._judge(claim)
            self.ready_now(found.name)
        self.daemon_probe.probe(found)
        self._wake.set()

    def gone(self, pod: dict[str, Any]) -> None:
        """A pod is no more."""
        self._gone(pod["metadata"]["name"])

    def _gone(self, name: str) -> None:
        pod = self.state.drop(name)
        if pod is not None and pod.never_leased and not pod.for_its_image:
            self._metrics.wasted.labels(pod.made_for).inc()
        claim = self.state.holders.get(name)
        if claim is not None and claim.confirmed:
            self._judge(claim)
        self._wake.set()

    def _adopt(self, pod: SandboxPod) -> None:
        """A lease that we don't know: this broker was started anew, or another one is at work."""
        lease = pod.leased
        if lease is None or lease.id in self.state.claims or pod.request is None:
            return
        shape = self._shapes.of(pod.request.image, pod.request.resources)
        claim = adopted(pod, shape, self.clock())
        if claim is not None:
            self.state.add(claim)
            self.state.hold(claim, pod.name)
            self.state.active[claim.id] = claim

    def ready_now(self, name: str) -> None:
        """The claim of a pod runs, if the pod is ready and carries its lease."""
        pod, claim = self.state.pods.get(name), self.state.holders.get(name)
        if pod is None or claim is None or claim.state is not SandboxState.STARTING:
            return
        if pod.claim != claim.id or not self.state.is_ready(pod):
            return
        now = self.clock()
        claim.heard_at = now
        claim.state, claim.reason, claim.message = SandboxState.RUNNING, "", ""
        if claim.ready_at is None:  # else it ran before this broker did
            claim.ready_at = now
            self._metrics.claim_seconds.labels(claim.found).observe(max(0.0, now - claim.asked_at))
        claim.settle()

    # Claims

    def schedule(self) -> None:
        """Gives turns while there is room."""
        if not self.synced.is_set():
            return
        state = self.state
        while len(state.queue) and len(state.active) < self._settings.spec.max_concurrent:
            claim = state.claims[state.queue.pop()]
            now = self.clock()
            pod = plan.choose(state.free(claim.shape.key), state.is_ready, claim.ttl, now)
            claim.state, claim.leased_at = SandboxState.STARTING, now
            if claim.request.timeout_seconds is not None:
                claim.start_seconds = claim.asked_at + claim.request.timeout_seconds - now
            state.active[claim.id] = claim
            self.operations.serve(claim, pod, now)
            self._wake.set()

    def requeue(self, claim: Claim) -> None:
        """Somebody else has its pod: it is the next one again."""
        self.state.let_go(claim)
        self.state.active.pop(claim.id, None)
        claim.pod, claim.confirmed, claim.leased_at = "", False, None
        claim.state = SandboxState.QUEUED
        self.state.queue.put_back(claim.id, claim.group)
        self.schedule()

    def finish(self, claim: Claim, end: ClaimEnd) -> None:
        """The end of a claim; its pod is released."""
        if claim.final:
            return
        state = self.state
        claim.state, claim.reason, claim.message = end.state, end.reason, end.message
        claim.ended_at = self.clock()
        state.queue.remove(claim.id)
        state.active.pop(claim.id, None)
        state.let_go(claim)
        claim.settle()
        self._metrics.ended.labels(end.reason).inc()
        if claim.reason != Reason.CLOSED:
            logger.info("sandbox %s (%s): %s: %s", claim.id, claim.pod or "no pod", claim.reason, claim.message)
        self._release(claim)
        self.schedule()

    def release(self, claim: Claim) -> asyncio.Task[None] | None:
        """The work that frees the pod of a final claim; None where there is nothing left to do."""
        return self.operations.releases.get(claim.id) or self._release(claim)

    def holds_on(self, claim: Claim) -> bool:
        """Whether a final claim's pod could not be freed yet."""
        pod = self.state.pods.get(claim.pod)
        return pod is not None and pod.claim == claim.id and not pod.deleting and not claim.released

    def wake(self) -> None:
        """There is something to decide."""
        self._wake.set()

    def _release(self, claim: Claim) -> asyncio.Task[None] | None:
        if not claim.pod:
            return None
        pod = self.state.pods.get(claim.pod)
        keep = pod is not None and self._warm_pool.wants_back(pod, self.clock())
        return self.operations.release(claim, keep=keep, now=self.clock())

    def _judge(self, claim: Claim) -> None:
        end = plan.claim_end(claim, self.state.pods.get(claim.pod), self._settings, self.clock())
        if end is not None:
            self.finish(claim, end)

    # Time passes

    async def run(self) -> None:
        """Until it is cancelled."""
        rhythm = self._settings.rhythm
        await self.synced.wait()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(rhythm.round):
                    await self._wake.wait()
            self._wake.clear()
            self.step()
            await asyncio.sleep(rhythm.step)

    def step(self) -> None:
        """One round: all deadlines, all leftovers, the stock."""
        state, now = self.state, self.clock()
        for claim in list(state.claims.values()):
            if not claim.final:
                self._judge(claim)
            elif now > (claim.ended_at or now) + self._settings.rhythm.remembered and not self.holds_on(claim):
                state.forget(claim)
        for pod in list(state.pods.values()):
            busy = state.busy.get(pod.name)
            if busy and busy.doing is Doing.RESETTING and now > busy.since + self._settings.rhythm.reset:
                logger.info("pod %s is not back %.0f s after its reset: deleting it", pod.name, now - busy.since)
                self.operations.delete(pod, now, urgent=False)
            elif busy is None and pod.leased is not None and pod.name not in state.holders:
                self._leftover(pod, now)
            elif busy is None and pod.ended and not pod.deleting and pod.name not in state.holders:
                self.operations.delete(pod, now, urgent=False)
        self._warm_pool.step(now)
        self.schedule()

    def _leftover(self, pod: SandboxPod, now: float) -> None:
        """A lease without a claim that could use it."""
        claim = self.state.claims.get(pod.claim)
        if pod.deleting:
            return
        if claim is not None and claim.final:
            self._release(claim)
        elif claim is None:
            logger.info("pod %s has a lease that can't be read: deleting it", pod.name)
            self.operations.delete(pod, now, urgent=False)
