"""Decisions: which request gets which pod, which pods are made, reset and deleted. Pure: time is an argument."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gymtrain_api.sandboxes import ABANDONED_SECONDS, Reason, SandboxState
from gymtrain_broker.objects.leases import MadeFor
from gymtrain_broker.objects.pod_view import SandboxPod, Trouble
from gymtrain_broker.policy.claims import Claim
from gymtrain_broker.policy.pulls import Pulls
from gymtrain_broker.policy.shapes import PodShape
from gymtrain_broker.settings import Settings

# The kubelet starts a container anew at once if it is the first time, or if the container ran for longer than twice its
# longest back-off (5 min). Else it waits for 10 s and more, and a new pod is faster.
_STABLE_SECONDS = 615.0
_SPARE_SECONDS = 30.0
_LOW_WATER = 4  # a pool with less than the fourth part is refilled at any time


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


def choose(
    free: Iterable[SandboxPod], is_ready: Callable[[SandboxPod], bool], ttl: float, now: float
) -> SandboxPod | None:
    """The free pod for a request: the first that is ready, else the first on its way, that lives long enough."""
    coming: SandboxPod | None = None
    for pod in free:
        if pod.hard_stop < now + ttl + _SPARE_SECONDS or pod.trouble is not None or not pod.clean:
            continue
        if is_ready(pod):
            return pod
        coming = coming or pod
    return coming


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
        return _failed(Reason.POD_DELETED, "its pod was deleted by somebody else")
    # A restart voids a lease, but in a pod that has ended the kubelet counts one for an end that it didn't see.
    if pod.trouble is not None and pod.trouble.final and (pod.ended or pod.leased is not None):
        return _of(pod.trouble)
    if pod.leased is None:
        return _of(pod.last)
    if pod.deleting:
        return _failed(Reason.POD_DELETED, f"its pod is being deleted: {pod.disruption or 'by somebody else'}")
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
        return "agent-sandbox has not made its pod: see whether its controller runs, with --extensions"
    if pod.held_up:
        return (
            f"its node can't make the pod: `kubectl describe pod {pod.name}` says why while it exists. Runtimes "
            "without user namespaces refuse hostUsers: false, and nodes a runtimeClassName that they lack"
        )
    if not pod.running:
        return (
            f"the container has not been started; its image {pod.image} may still be on its way: have it pulled ahead "
            "(spec.sandboxes.warmPools, lookAhead) or raise startTimeoutSeconds"
        )
    return f"the daemon at {pod.ip}:{settings.daemon_port} doesn't answer the broker: look for NetworkPolicies"


def _abandoned(claim: Claim, now: float) -> ClaimEnd | None:
    if claim.waiters or now < claim.waited_at + ABANDONED_SECONDS:
        return None
    return _closed(Reason.ABANDONED, f"nobody has asked for it for {ABANDONED_SECONDS:.0f} s")


def _of(trouble: Trouble) -> ClaimEnd:
    return _failed(trouble.reason, trouble.message)


def _failed(reason: str, message: str) -> ClaimEnd:
    return ClaimEnd(SandboxState.FAILED, reason, message)


def _closed(reason: str, message: str) -> ClaimEnd:
    return ClaimEnd(SandboxState.CLOSED, reason, message)


def resettable(pod: SandboxPod, settings: Settings, now: float) -> bool:
    """Whether the pod can serve another request soon, after its container was started anew."""
    if not pod.reusable or pod.lost or not pod.running:
        return False
    if pod.hard_stop < now + settings.spec.timeout_seconds + _SPARE_SECONDS:
        return False
    return pod.restarts == 0 or now - (pod.started or now) > _STABLE_SECONDS


def wants(pools: Sequence[Want], announced: Iterable[PodShape], ahead: int) -> dict[str, Want]:
    """Free sandboxes that should be there, by shape, in the order of their making: pools, then tasks as they come."""
    found = {want.shape.key: want for want in pools}
    coming = Counter[str]()
    for shape, _ in zip(announced, range(ahead), strict=False):
        coming[shape.key] += 1
        known = found.get(shape.key)
        if known is None or known.count < coming[shape.key]:
            made_for = known.made_for if known else MadeFor.LOOK_AHEAD
            found[shape.key] = Want(shape, coming[shape.key], made_for)
    return found


def urgent(wanted: Mapping[str, Want], free: Mapping[str, int]) -> dict[str, Want]:
    """What to make even while the control plane has no room to spare: all but the refill of pools that still hold a
    quarter of theirs. A pool is there for such moments; each sandbox that is made for it then costs several requests
    their turn."""
    return {
        key: want
        for key, want in wanted.items()
        if want.made_for is not MadeFor.POOL or free.get(key, 0) * _LOW_WATER < want.count
    }


def missing(
    wanted: Mapping[str, Want], free: Mapping[str, int], pulls: Pulls, under_way: dict[str, set[str]], now: float
) -> Iterator[Want]:
    """What to make ahead, one by one: a Want a pod. `under_way` grows with it."""
    for key, want in wanted.items():
        for _ in range(want.count - free.get(key, 0)):
            if not pulls.allows(want.shape.image, under_way, now):
                break
            under_way.setdefault(want.shape.registry, set()).add(want.shape.image)
            yield want


def starved(pods: Iterable[SandboxPod]) -> list[SandboxPod]:
    """Pods that no node takes."""
    return [pod for pod in pods if pod.trouble is not None and pod.trouble.reason == Reason.UNSCHEDULABLE]


def making_room(free: Sequence[SandboxPod], ready: Collection[str], claimed: int) -> list[SandboxPod]:
    """Free pods to give up for so many requests that no node takes: first those that are furthest from ready."""
    order = sorted(free, key=lambda pod: (pod.name in ready, pod.running, -pod.created))
    return order[: max(0, claimed)]


def surplus(
    wanted: Mapping[str, Want],
    free: Mapping[str, Sequence[SandboxPod]],
    unwanted_since: Mapping[str, float],
    settings: Settings,
    now: float,
) -> Iterator[SandboxPod]:
    """Free pods that nobody will need.

    One that an announcement no longer names stays for a while: the trainer draws a task and announces the next ones
    before the agent asks for the sandbox.
    """
    for key, pods in free.items():
        keep = wanted[key].count if key in wanted else 0
        for pod in list(pods)[keep:]:
            if now - unwanted_since.get(pod.name, now) >= settings.rhythm.grace:
                yield pod


def worn(pod: SandboxPod, settings: Settings, now: float) -> bool:
    """Whether a free pod is of no use any more: ended, broken, not wiped, or too near its own deadline for a lease."""
    if pod.ended or not pod.clean or (pod.trouble is not None and (pod.trouble.final or pod.trouble.image)):
        return True
    if now > pod.created + settings.spec.start_timeout_seconds and not pod.running:
        return True
    return pod.hard_stop < now + settings.spec.timeout_seconds + _SPARE_SECONDS
