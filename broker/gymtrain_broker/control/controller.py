"""The control loop: every claim gets its pod and its end, and free pods are there before they are asked for.

    observe     PodWatch: pods as the API server shows them; Daemons: whether they answer, for how long they are idle
    apply       what was observed, and what came of steps, to State: `apply`
    decide      policy: whose turn it is, who has ended, which pods are made and deleted: `round`
    carry out   PodOperations: a step goes in, its outcome comes back and is applied: `_begin`, `_carry_out`

The controller alone changes the state. Nothing that it calls knows it: what it calls returns what it has found or done.
An event is applied, and what follows for its one claim decided, at once; a claim that comes has its turn at once where
there is room. Rounds see to the rest: what time alone changes, and free pods.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, assert_never

from gymtrain_api import names
from gymtrain_api.sandboxes import AnnouncedTask, Reason, SandboxState
from gymtrain_broker.backends.backend import Backend
from gymtrain_broker.control.daemons import DaemonIdle, DaemonReady, Daemons, NetworkOpen
from gymtrain_broker.control.pod_operations import (
    Delayed,
    MadeAhead,
    NotDeleted,
    NotMadeAhead,
    NotReset,
    Outcome,
    PodDeleted,
    PodOperations,
    PodReset,
    PodTaken,
    Refused,
    Served,
)
from gymtrain_broker.control.pod_watch import PodChange, PodGone, PodSeen, PodsListed, PodWatch
from gymtrain_broker.metrics import Metrics
from gymtrain_broker.objects.leases import Found, MadeFor
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.policy import plan
from gymtrain_broker.policy.claims import Claim, adopted
from gymtrain_broker.policy.image_pulls import ImagePulls
from gymtrain_broker.policy.plan import ClaimEnd, DeletePod, MakePod, MakePodAhead, ResetPod, Step, TakePod
from gymtrain_broker.policy.shapes import PodShapes
from gymtrain_broker.policy.state import Answered, Busy, State
from gymtrain_broker.policy.warm_pool import WarmPool
from gymtrain_broker.settings import Settings

logger = logging.getLogger(__name__)

type Event = PodChange | DaemonReady | NetworkOpen | DaemonIdle | Outcome

_CURRENT_SECONDS = 150.0  # two watches
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # between tries of a write that a claim waits for
_BROKEN_PAUSE = 5.0  # before a round may try a step again that broke
_POLLS = 32  # daemons asked at once
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_SUFFIX = 10


class Controller:
    """Owns the state of one broker, and sees that it becomes what claims and the spec ask for."""

    def __init__(
        self,
        settings: Settings,
        state: State,
        shapes: PodShapes,
        backend: Backend,
        daemons: Daemons,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self.state = state
        self._shapes = shapes
        self._daemons = daemons
        self._metrics = metrics
        self.clock = clock
        self._pod_watch = PodWatch(backend, metrics)
        self._operations = PodOperations(backend, daemons)
        self._pulls = ImagePulls(settings.spec.pre_pull.max_per_registry)
        self._warm_pool = WarmPool(settings, state, shapes, self._pulls)
        self._steps: set[asyncio.Task[None]] = set()
        self._step_of: dict[str, asyncio.Task[None]] = {}  # under way, by claim
        self._probes: dict[str, asyncio.Task[None]] = {}  # by pod
        self._settled: dict[str, asyncio.Event] = {}  # by claim that somebody waits for
        self._stopping = False
        self._changed = asyncio.Event()
        self.synced = asyncio.Event()  # the pods have been listed

    # Its loops

    def loops(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Returns what has to run as long as the broker does."""
        return self._run(), self._follow_pods(), self._poll_daemons()

    async def _run(self) -> None:
        """Runs a round soon after each change, and once a second without one, because deadlines pass."""
        rhythm = self._settings.rhythm
        await self.synced.wait()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(rhythm.round):
                    await self._changed.wait()
            self._changed.clear()
            self.round()
            await asyncio.sleep(rhythm.pause)

    def round(self) -> None:
        """Does everything that is due now."""
        now = self.clock()
        self._look_after_claims(now)
        self._clear_pods(now)
        self._look_after_free_pods(now)
        self._give_turns()

    async def _follow_pods(self) -> None:
        async for change in self._pod_watch.changes():
            self.apply(change)

    async def _poll_daemons(self) -> None:
        """Asks the daemons of running sandboxes, again and again."""
        gate = asyncio.Semaphore(_POLLS)

        async def ask(claim: Claim) -> None:
            async with gate:
                await self.ask_idle(claim)

        while True:
            await asyncio.sleep(self._settings.idle_poll)
            running = [claim for claim in self.state.active.values() if claim.state is SandboxState.RUNNING]
            await asyncio.gather(*map(ask, running))

    async def ask_idle(self, claim: Claim) -> None:
        """Asks the daemon of a claim's sandbox for how long it has been idle."""
        pod = self.state.pods.get(claim.pod)
        if pod is not None and (idle := await self._daemons.ask_idle(claim, pod)) is not None:
            self.apply(idle)

    async def finish_steps(self, seconds: float) -> None:
        """Waits for the steps that are under way, and for those that follow from them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._steps:
                    await asyncio.wait(self._steps)
        for task in (*self._steps, *self._probes.values()):
            task.cancel()

    def why_not_ready(self) -> str:
        """Says why the broker should get no requests now; empty if it should."""
        if not self.synced.is_set():
            return "the pods have not been listed yet"
        silent = time.monotonic() - self._pod_watch.heard_at
        return f"the API server hasn't answered for {silent:.0f} s" if silent > _CURRENT_SECONDS else ""

    # What requests bring

    def submit(self, claim: Claim) -> None:
        """Takes in a new claim, which has its turn at once where there is room."""
        self.state.drawn(claim)
        self.state.add(claim)
        self.state.queue.put(claim.id, claim.request.task)
        self._give_turns()

    def announce(self, tasks: Sequence[AnnouncedTask]) -> None:
        """Replaces the tasks that come next."""
        self.state.announced = list(tasks)
        self._changed.set()

    async def wait(self, claim: Claim, seconds: float) -> None:
        """Waits until a claim is neither Queued nor Starting, at most for that time."""
        claim.waiters += 1
        try:
            if seconds > 0 and claim.waiting and not self._stopping:
                settled = self._settled.setdefault(claim.id, asyncio.Event())
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await settled.wait()
        finally:
            claim.waiters -= 1
            claim.waited_at = self.clock()

    def end_waits(self) -> None:
        """Ends all waits, and those that begin later: clients get their claim as it is, and ask the next broker."""
        self._stopping = True
        for settled in self._settled.values():
            settled.set()

    async def close(self, claim: Claim, seconds: float) -> bool:
        """Ends a claim, and says whether its pod was freed within that time. If not, rounds go on trying."""
        if not claim.final:
            self._end(claim, plan.closed_by_client())
        elif self._holds_on(claim):
            self._release(claim)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (step := self._step_of.get(claim.id)) is not None:
                    await asyncio.wait([step])
        return not self._holds_on(claim)

    # Apply

    def apply(self, event: Event) -> None:
        """Changes the state as an event demands, and does what follows at once for the claim that it is about."""
        state = self.state
        match event:
            case PodsListed():
                listed = {pod.name for pod in event.pods}
                for name, known in list(state.pods.items()):
                    # One that was made since is newer than the list.
                    if name not in listed and (not event.version or known.version <= event.version):
                        self._lose(name)
                for pod in event.pods:
                    self._see(pod)
                self.synced.set()
                self._give_turns()
            case PodSeen():
                self._see(event.pod)
            case PodGone():
                self._lose(event.name)
            case DaemonReady():
                state.ready[event.pod.name] = Answered(event.pod.restarts, event.instance)
                self._run_claim_of(event.pod.name)
            case NetworkOpen():
                holder = state.holders.get(event.pod.name)
                if holder is not None and not holder.final:
                    holder.message = event.why
            case DaemonIdle():
                claim = event.claim
                if claim.ready_at is not None:
                    claim.heard_at = self.clock()
                    # A sandbox that was made ahead has been idle before its claim.
                    claim.idle = min(event.seconds, claim.heard_at - claim.ready_at)
            case Served():
                claim = event.step.claim
                state.busy.pop(event.pod.name, None)
                self._count_turn(event.step)
                self._see(event.pod)
                self._run_claim_of(event.pod.name)
                if claim.final:  # it has ended meanwhile
                    self._release(claim)
            case PodTaken():
                claim, name = event.step.claim, event.step.pod.name
                state.busy.pop(name, None)
                if event.pod is None:
                    self._lose(name)
                else:
                    state.put(event.pod)
                if claim.final:
                    self._release(claim)
                else:
                    self._requeue(claim)
                if event.pod is not None:
                    self._see(event.pod)
                    self._run_claim_of(name)
            case Delayed() if not event.step.claim.final:
                event.step.claim.message = event.message
            case Refused() | Delayed():
                claim = event.step.claim
                state.busy.pop(claim.pod, None)
                self._end(claim, plan.refused(event.message))  # unless it has ended meanwhile
                self._release(claim)
                if event.maybe_made and claim.id not in self._step_of:
                    self._begin(DeletePod(claim.pod, "", urgent=True, claim=claim))
            case MadeAhead():
                self._metrics.made.labels(event.step.want.made_for).inc()
                self._see(event.pod)
            case NotMadeAhead():
                image = event.step.want.shape.image
                logger.warning("can't make a sandbox of %s ahead: %s", image, event.message)
                self._pulls.failed(image, self.clock(), throttled=False)
            case PodReset():
                event.step.claim.released = True
                self._metrics.resets.inc()
            case NotReset():
                pod = event.step.pod
                self._begin(DeletePod(pod.name, pod.uid, urgent=True, claim=event.step.claim))
            case PodDeleted():
                if event.step.claim is not None:
                    event.step.claim.released = True
                if event.step.name not in state.pods:  # so nothing will show that it is gone
                    state.busy.pop(event.step.name, None)
            case NotDeleted():
                logger.warning("can't delete pod %s yet: %s", event.step.name, event.message)
                state.busy.pop(event.step.name, None)  # the next round tries again
            case _:
                assert_never(event)

    def _see(self, pod: SandboxPod) -> None:
        """Takes in a pod as it is now."""
        state = self.state
        if not state.put(pod):
            return
        self._pulls.note(pod)
        step = state.step_on(pod)
        if isinstance(step, ResetPod) and pod.restarts > step.pod.restarts:
            del state.busy[pod.name]
        self._adopt(pod)
        claim = state.holders.get(pod.name)
        if claim is not None:
            claim.confirmed = claim.confirmed or pod.claim == claim.id
            self._end_if_due(claim)
            self._run_claim_of(pod.name)
        self._probe(pod)
        self._changed.set()

    def _lose(self, name: str) -> None:
        """Takes in that a pod is gone."""
        pod = self.state.drop(name)
        if pod is not None and pod.never_leased and not pod.for_its_image:
            self._metrics.wasted.labels(pod.made_for).inc()
        claim = self.state.holders.get(name)
        if claim is not None and claim.confirmed:
            self._end_if_due(claim)
        self._changed.set()

    def _adopt(self, pod: SandboxPod) -> None:
        """Takes over a lease that is not known: this broker has just started, or another one is at work."""
        lease = pod.leased
        if lease is None or lease.id in self.state.claims or pod.request is None:
            return
        shape = self._shapes.of(pod.request.image, pod.request.resources)
        claim = adopted(pod, shape, self.clock())
        if claim is not None:
            self.state.add(claim)
            self.state.hold(claim, pod.name)
            self.state.active[claim.id] = claim

    def _probe(self, pod: SandboxPod) -> None:
        """Asks a daemon until it answers, if its container runs and nobody asks it yet."""
        if self._worth_asking(pod) and pod.name not in self._probes:
            task = asyncio.create_task(self._until_ready(pod.name))
            self._probes[pod.name] = task
            task.add_done_callback(lambda _: self._probes.pop(pod.name, None))

    async def _until_ready(self, name: str) -> None:
        pause = self._settings.rhythm.probe_first
        while (pod := self.state.pods.get(name)) is not None and self._worth_asking(pod):
            if (answer := await self._daemons.ask_ready(pod)) is not None:
                self.apply(answer)
                if isinstance(answer, DaemonReady):
                    return
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, self._settings.rhythm.probe_most)

    def _worth_asking(self, pod: SandboxPod) -> bool:
        return pod.running and bool(pod.ip) and not pod.lost and not self.state.is_ready(pod)

    def _run_claim_of(self, name: str) -> None:
        """Lets the claim of a pod run, if the pod is ready and carries its lease."""
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
        self._settle(claim)

    def _count_turn(self, step: TakePod | MakePod) -> None:
        if isinstance(step, MakePod):
            self._metrics.made.labels(MadeFor.CLAIM).inc()
        claim = step.claim
        self._metrics.claims.labels(claim.found).inc()
        self._metrics.queue_seconds.observe(max(0.0, (claim.leased_at or claim.asked_at) - claim.asked_at))

    # Decide: claims

    def _give_turns(self) -> None:
        """Gives pods to the next claims of the queue, while there is room."""
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
            if pod is None:
                claim.found = Found.NONE
                self._begin(MakePod(claim, self._new_name(), claim.lease(now, claim.start_seconds, restarts=0)))
            else:
                ready = state.is_ready(pod)
                claim.found = Found.READY if ready else Found.STARTING
                lease = claim.lease(now, 0.0 if ready else claim.start_seconds, pod.restarts)
                self._begin(TakePod(claim, pod, lease))
            self._changed.set()

    def _requeue(self, claim: Claim) -> None:
        """Puts a claim back to the front of the queue: someone else has its pod."""
        self.state.let_go(claim)
        self.state.active.pop(claim.id, None)
        claim.pod, claim.confirmed, claim.leased_at = "", False, None
        claim.state = SandboxState.QUEUED
        self.state.queue.put_back(claim.id, claim.request.task)
        self._give_turns()

    def _look_after_claims(self, now: float) -> None:
        """Ends claims whose deadline has passed or whose client has gone, and forgets those that ended long ago."""
        for claim in list(self.state.claims.values()):
            if not claim.final:
                self._end_if_due(claim)
            elif now > (claim.ended_at or now) + self._settings.rhythm.remembered and not self._holds_on(claim):
                self.state.forget(claim)

    def _end_if_due(self, claim: Claim) -> None:
        end = plan.claim_end(claim, self.state.pods.get(claim.pod), self._settings, self.clock())
        if end is not None:
            self._end(claim, end)

    def _end(self, claim: Claim, end: ClaimEnd) -> None:
        """Ends a claim, frees its pod, and gives its place to another."""
        if claim.final:
            return
        state = self.state
        claim.state, claim.reason, claim.message = end.state, end.reason, end.message
        claim.ended_at = self.clock()
        state.queue.remove(claim.id)
        state.active.pop(claim.id, None)
        state.let_go(claim)
        self._settle(claim)
        self._metrics.ended.labels(end.reason).inc()
        if claim.reason != Reason.CLOSED:
            logger.info("sandbox %s (%s): %s: %s", claim.id, claim.pod or "no pod", claim.reason, claim.message)
        self._release(claim)
        self._give_turns()

    def _release(self, claim: Claim) -> None:
        """Frees the pod of a claim that has ended: resets it where it is to serve another claim, else deletes it."""
        pod = self.state.pods.get(claim.pod)
        if claim.id in self._step_of:
            return  # its pod is still being made, leased or freed; what comes of that leads here again
        if pod is None or pod.claim != claim.id or pod.deleting or (pod.leased is None and pod.clean):
            return
        if pod.leased is not None and self._warm_pool.wants_back(pod, self.clock()):
            self._begin(ResetPod(claim, pod))
        else:
            self._begin(DeletePod(pod.name, pod.uid, urgent=True, claim=claim))

    def _holds_on(self, claim: Claim) -> bool:
        """Whether a final claim's pod could not be freed yet."""
        pod = self.state.pods.get(claim.pod)
        return pod is not None and pod.claim == claim.id and not pod.deleting and not claim.released

    def _settle(self, claim: Claim) -> None:
        """Ends the waits for a claim."""
        if (settled := self._settled.pop(claim.id, None)) is not None:
            settled.set()

    # Decide: pods

    def _clear_pods(self, now: float) -> None:
        """Frees or deletes pods that no claim has and that can't be free ones."""
        state = self.state
        for pod in list(state.pods.values()):
            busy = state.busy.get(pod.name)
            if busy is not None:
                if isinstance(busy.step, ResetPod) and now > busy.since + self._settings.rhythm.reset:
                    logger.info("pod %s is not back %.0f s after its reset: deleting it", pod.name, now - busy.since)
                    self._delete(pod)
            elif pod.deleting or pod.name in state.holders:
                continue
            elif pod.leased is None:
                if pod.ended:
                    self._delete(pod)
            elif (claim := state.claims.get(pod.claim)) is None:
                logger.info("pod %s has a lease that can't be read: deleting it", pod.name)
                self._delete(pod)
            elif claim.final:
                self._release(claim)

    def _look_after_free_pods(self, now: float) -> None:
        """Makes and deletes free pods as the warm pool plans it."""
        pool = self._warm_pool.plan(now, pressed=self._operations.pressed())
        for pod in pool.worn:
            if (trouble := pod.trouble) is not None:
                logger.info("pod %s, made ahead: %s: %s", pod.name, trouble.reason, trouble.message)
                if trouble.image:
                    self._metrics.pull_failures.labels("throttled" if trouble.throttled else trouble.reason).inc()
            self._delete(pod)
        for pod in pool.unneeded:
            self._delete(pod)
        for pod in pool.in_the_way:
            logger.info("pod %s, made ahead, makes room for a claim that no node takes", pod.name)
            self._delete(pod, urgent=True)
        for want in pool.missing:
            self._begin(MakePodAhead(want, self._new_name()))

    def _delete(self, pod: SandboxPod, *, urgent: bool = False) -> None:
        """Deletes a pod that no claim has."""
        self._begin(DeletePod(pod.name, pod.uid, urgent=urgent))

    # Carry out

    def _begin(self, step: Step) -> None:
        """Notes what a step is about to do, and starts it."""
        state, now = self.state, self.clock()
        match step:
            case TakePod():
                state.hold(step.claim, step.pod.name)
                state.busy[step.pod.name] = Busy(step, now)
            case MakePod():
                state.hold(step.claim, step.name)
            case MakePodAhead():
                state.making[step.name] = step.want
            case ResetPod():
                state.busy[step.pod.name] = Busy(step, now)
            case DeletePod():
                state.busy[step.name] = Busy(step, now)
            case _:
                assert_never(step)
        task = asyncio.create_task(self._carry_out(step))
        self._steps.add(task)
        task.add_done_callback(self._ended)
        if not isinstance(step, MakePodAhead) and step.claim is not None:
            self._step_of[step.claim.id] = task

    async def _carry_out(self, step: Step) -> None:
        """Tries a step until its outcome stands, and applies that."""
        pause = _FIRST_PAUSE
        try:
            outcome = await self._perform(step)
            while isinstance(outcome, Delayed) and not outcome.step.claim.final:
                self.apply(outcome)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                outcome = await self._perform(step)
        finally:
            if isinstance(step, MakePodAhead):
                del self.state.making[step.name]
            elif step.claim is not None:
                self._step_of.pop(step.claim.id, None)
        self.apply(outcome)

    async def _perform(self, step: Step) -> Outcome:
        """Carries out a step. One that breaks in a way that nobody foresaw has failed like any other: else its pod
        would stay busy for ever, and its room be lost."""
        try:
            return await self._operations.perform(step)
        except Exception as error:
            logger.exception("a step broke")
            message = f"the broker failed: {error!r}"
        match step:
            case TakePod():
                return Delayed(step, message)
            case MakePod():
                return Delayed(step, message, maybe_made=True)
            case MakePodAhead():
                return NotMadeAhead(step, message)
            case ResetPod():
                return NotReset(step)
            case DeletePod():
                await asyncio.sleep(_BROKEN_PAUSE)
                return NotDeleted(step, message)
            case _:
                assert_never(step)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._steps.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a step broke", exc_info=task.exception())

    def _new_name(self) -> str:
        """Returns a name for a new pod."""
        return names.sandbox(self._settings.run, "".join(secrets.choice(_LETTERS) for _ in range(_SUFFIX)))
