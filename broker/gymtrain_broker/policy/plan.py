"""Decisions about claims, and the steps that follow from decisions. Pure: time is an argument.

Which pod a claim gets (`choose`), whether and how it ends (`claim_end`). What becomes of free pods is decided in
`warm_pool`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gymtrain_api.sandboxes import ABANDONED_SECONDS, Reason, SandboxState
from gymtrain_broker.objects.leases import Lease, MadeFor
from gymtrain_broker.objects.pod_view import SandboxPod, Trouble
from gymtrain_broker.policy.claims import Claim
from gymtrain_broker.policy.shapes import PodShape
from gymtrain_broker.settings import Settings

SPARE_SECONDS = 30.0  # that a pod lives longer than the lease it is to carry


@dataclass(frozen=True)
class ClaimEnd:
    """How a claim ends."""

    state: SandboxState
    reason: str
    message: str


@dataclass(frozen=True)
class Want:
    """Free sandboxes of one shape that should be there."""

    shape: PodShape
    count: int
    made_for: MadeFor


# Steps


@dataclass(frozen=True)
class TakePod:
    """Lease a free pod to a claim that has its turn."""

    claim: Claim
    pod: SandboxPod
    lease: Lease


@dataclass(frozen=True)
class MakePod:
    """Make a pod for a claim that has its turn; it carries the lease from its first moment."""

    claim: Claim
    name: str
    lease: Lease


@dataclass(frozen=True)
class MakePodAhead:
    """Make one of the free pods that should be there."""

    want: Want
    name: str


@dataclass(frozen=True)
class ResetPod:
    """Have the container of a pod restarted whose claim has ended, so that the pod can serve another."""

    claim: Claim
    pod: SandboxPod


@dataclass(frozen=True)
class DeletePod:
    """Delete a pod.

    Attributes:
        uid: deletes that very pod; empty: whichever has the name.
        urgent: somebody waits for its end, or for its place.
        claim: whose pod it was; None if it served nobody.
    """

    name: str
    uid: str
    urgent: bool
    claim: Claim | None = None


type Step = TakePod | MakePod | MakePodAhead | ResetPod | DeletePod


# Which pod a claim gets


def choose(
    free: Iterable[SandboxPod], is_ready: Callable[[SandboxPod], bool], ttl: float, now: float
) -> SandboxPod | None:
    """The free pod for a claim: the first that is ready, else the first on its way, that lives long enough."""
    coming: SandboxPod | None = None
    for pod in free:
        if pod.hard_stop < now + ttl + SPARE_SECONDS or pod.trouble is not None or not pod.clean:
            continue
        if is_ready(pod):
            return pod
        coming = coming or pod
    return coming


def starved(pods: Iterable[SandboxPod]) -> list[SandboxPod]:
    """Pods that don't fit on any node."""
    return [pod for pod in pods if pod.trouble is not None and pod.trouble.reason == Reason.UNSCHEDULABLE]


# How a claim ends


def claim_end(claim: Claim, pod: SandboxPod | None, settings: Settings, now: float) -> ClaimEnd | None:
    """Whether and how a claim ends now."""
    if claim.state is SandboxState.QUEUED:
        return _queued(claim, settings, now)
    if claim.confirmed and (over := _pod_over(pod)):
        return over
    if claim.state is SandboxState.STARTING:
        return _starting(claim, pod, settings, now)
    if claim.state is SandboxState.RUNNING:
        return _running(claim, settings, now)
    return None


def closed_by_client() -> ClaimEnd:
    """The end that its client asks for."""
    return _closed(Reason.CLOSED, "closed by its client")


def refused(message: str) -> ClaimEnd:
    """The end of a claim whose pod the API server doesn't accept."""
    return _failed(
        Reason.REJECTED,
        f"the API server refuses the sandbox's pod: {message}. See spec.sandboxes, and the namespace's policies",
    )


def _queued(claim: Claim, settings: Settings, now: float) -> ClaimEnd | None:
    if now >= claim.turn_by:
        return _failed(
            Reason.DEADLINE,
            f"no turn within {claim.turn_by - claim.asked_at:.0f} s: all {settings.spec.max_concurrent} places are "
            "taken; raise spec.sandboxes.maxConcurrent or queueTimeoutSeconds, or close sandboxes sooner",
        )
    return _abandoned(claim, now)


def _pod_over(pod: SandboxPod | None) -> ClaimEnd | None:
    """What the end of its pod means for a claim."""
    if pod is None:
        return _failed(Reason.POD_DELETED, "someone else deleted its pod")
    # A restart voids a lease, but in a pod that has ended the kubelet counts one for an end that it didn't see.
    if pod.trouble is not None and pod.trouble.final and (pod.ended or pod.leased is not None):
        return _of(pod.trouble)
    if pod.leased is None:
        return _of(pod.last)
    if pod.deleting:
        return _failed(Reason.POD_DELETED, f"its pod is being deleted: {pod.disruption or 'by someone else'}")
    if pod.ended:
        return _failed(Reason.EXITED, "its pod has ended")
    return None


def _starting(claim: Claim, pod: SandboxPod | None, settings: Settings, now: float) -> ClaimEnd | None:
    begin = claim.leased_at if claim.leased_at is not None else claim.asked_at
    if now >= begin + claim.start_seconds:
        why = pod.trouble.message if pod and pod.trouble else claim.message or _silence(pod, settings)
        return _failed(Reason.DEADLINE, f"not running within {claim.start_seconds:.0f} s: {why}")
    return _abandoned(claim, now)


def _running(claim: Claim, settings: Settings, now: float) -> ClaimEnd | None:
    spec = settings.spec
    begin = claim.ready_at or now
    if now >= begin + claim.ttl:
        return _closed(Reason.EXPIRED, f"it has run for {claim.ttl:.0f} s (ttlSeconds, spec.sandboxes.timeoutSeconds)")
    limit = spec.idle_timeout_seconds
    if claim.idle >= limit:
        return _closed(Reason.IDLE, f"no call for {limit} s (spec.sandboxes.idleTimeoutSeconds)")
    if now - max(begin, claim.heard_at) >= limit + 2 * settings.idle_poll:
        return _closed(Reason.IDLE, f"its daemon has not answered for {limit} s (spec.sandboxes.idleTimeoutSeconds)")
    return None


def _silence(pod: SandboxPod | None, settings: Settings) -> str:
    if pod is None:
        return "the API server has not made the pod"
    if not pod.pod_name:
        return "agent-sandbox has not made its pod: check that its controller runs with --extensions"
    if pod.held_up:
        return (
            f"its node can't make the pod: `kubectl describe pod {pod.name}` says why while it exists. Runtimes "
            "without user namespaces refuse hostUsers: false, and nodes a runtimeClassName that they lack"
        )
    if not pod.running:
        return (
            f"the container has not been started; its image {pod.image} may still be pulling: pull it ahead "
            "(spec.sandboxes.warmPools, lookAhead) or raise startTimeoutSeconds"
        )
    return f"the daemon at {pod.ip}:{settings.daemon_port} doesn't answer the broker: check the NetworkPolicies"


def _abandoned(claim: Claim, now: float) -> ClaimEnd | None:
    if claim.waiters or now < claim.waited_at + ABANDONED_SECONDS:
        return None
    return _closed(Reason.ABANDONED, f"no client has asked for it for {ABANDONED_SECONDS:.0f} s")


def _of(trouble: Trouble) -> ClaimEnd:
    return _failed(trouble.reason, trouble.message)


def _failed(reason: str, message: str) -> ClaimEnd:
    return ClaimEnd(SandboxState.FAILED, reason, message)


def _closed(reason: str, message: str) -> ClaimEnd:
    return ClaimEnd(SandboxState.CLOSED, reason, message)
