"""Free pods: which are made before they are asked for, and which are given up. Pure: time is an argument.

Wanted are, in this order: pools, a pod for each claim that waits in the queue and each announced task, and pods that
bring an image to a node. Pods are given up that are of no use any more, that nobody will ask for, or whose place is
needed by a claim that no node takes; while there is such a claim, nothing is made ahead.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from gymtrain_broker.objects.leases import MadeFor
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.policy.image_pulls import ImagePulls, PrePulls
from gymtrain_broker.policy.plan import SPARE_SECONDS, ResetPod, Want, starved
from gymtrain_broker.policy.shapes import PodShape, PodShapes
from gymtrain_broker.policy.state import State
from gymtrain_broker.settings import Settings

_MAKING = 32  # at once; what is asked for later would have to wait for these, should the control plane become slow
_BACK = 2  # times the wanted number may be free, when sandboxes come back faster than they are asked for
_LOW_WATER = 4  # a pool with less than the fourth part is refilled at any time
# The kubelet restarts a container at once if it is the first time, or if the container ran for longer than twice its
# longest back-off (5 min). Else it waits for 10 s and more, and a new pod is faster.
_STABLE_SECONDS = 615.0


@dataclass(frozen=True)
class WarmPoolPlan:
    """What to do about free pods.

    Attributes:
        worn: of no use any more.
        unneeded: nobody will ask for them, or they have brought their image.
        in_the_way: a claim that no node takes gets their place.
        missing: pods to make, one Want each.
    """

    worn: list[SandboxPod]
    unneeded: list[SandboxPod]
    in_the_way: list[SandboxPod]
    missing: list[Want] = field(default_factory=list)


class WarmPool:
    """The free pods of a run."""

    def __init__(self, settings: Settings, state: State, shapes: PodShapes, pulls: ImagePulls) -> None:
        self._settings = settings
        self._state = state
        self._shapes = shapes
        self._pulls = pulls
        self._pre_pulls = PrePulls(settings, shapes, pulls)
        self._unwanted: dict[str, float] = {}  # since when, by pod

    def plan(self, now: float, *, pressed: bool) -> WarmPoolPlan:
        """Plans one round. `pressed`: urgent writes are slow at the moment."""
        free, worn = self._free_pods(now)
        unneeded = self._pre_pulls.finished(free)
        for pod in unneeded:
            free[pod.shape].remove(pod)
        wanted = self._wanted()
        for pod in self._surplus(wanted, free, now):
            free[pod.shape].remove(pod)
            unneeded.append(pod)
        spare = [pod for pods in free.values() for pod in pods if not pod.for_its_image]  # those take next to no room
        stuck = self._stuck_claims()
        if stuck or starved(spare):
            ending = sum(self._state.word(pod) == "ending" for pod in self._state.pods.values())
            ending += len(worn) + len(unneeded)
            ready = {pod.name for pod in spare if self._state.is_ready(pod)}
            return WarmPoolPlan(worn, unneeded, making_room(spare, ready, stuck - ending))
        return WarmPoolPlan(worn, unneeded, [], self._missing(wanted, free, now, pressed=pressed))

    def wants_back(self, pod: SandboxPod, now: float) -> bool:
        """Whether a pod whose claim has ended is restarted instead of deleted."""
        want = next((pool for pool in self._pools() if pool.shape.key == pod.shape), None)
        if want is None or not resettable(pod, self._settings, now):
            return False
        resetting = sum(
            isinstance(busy.step, ResetPod) and self._state.pods[name].shape == pod.shape
            for name, busy in self._state.busy.items()
            if name in self._state.pods
        )
        return sum(1 for _ in self._state.free(pod.shape)) + resetting < _BACK * want.count

    def _free_pods(self, now: float) -> tuple[dict[str, list[SandboxPod]], list[SandboxPod]]:
        """Free pods by shape, those that are ready first, and beside them those that are of no use any more."""
        free: dict[str, list[SandboxPod]] = defaultdict(list)
        worn: list[SandboxPod] = []
        for pod in self._state.pods.values():
            if not self._state.is_free(pod):
                continue
            if not is_worn(pod, self._settings, now):
                free[pod.shape].append(pod)
                continue
            worn.append(pod)
            if pod.trouble is not None:
                self._pulls.failed(pod.image, now, throttled=pod.trouble.throttled)
        for pods in free.values():
            pods.sort(key=lambda pod: (not self._state.is_ready(pod), pod.created, pod.name))
        return free, worn

    def _pools(self) -> list[Want]:
        """Pools follow what claims for their image ask for: a sandbox with less would serve none of them."""
        return [
            Want(self._shapes.of(pool.image, self._state.asked(pool.image)), pool.replicas, MadeFor.POOL)
            for pool in self._settings.spec.warm_pools
        ]

    def _wanted(self) -> dict[str, Want]:
        """The queue comes before announced tasks: those that wait in it are the next to need a sandbox."""
        ahead = self._settings.spec.look_ahead.tasks
        queued = (self._state.claims[one].shape for one in self._state.queue) if ahead else ()
        coming = (self._shapes.of(one.image, self._state.resources_of(one)) for one in self._state.announced)
        wanted = wants(self._pools(), chain(queued, coming), ahead)
        pulls = self._pre_pulls.wanted(one.image for one in self._state.announced)
        return wanted | {want.shape.key: want for want in pulls}

    def _surplus(
        self, wanted: Mapping[str, Want], free: Mapping[str, Sequence[SandboxPod]], now: float
    ) -> list[SandboxPod]:
        """Free pods that no claim will need.

        One that an announcement no longer names stays for a while: the trainer draws a task and announces the next ones
        before the agent asks for the sandbox.
        """
        beyond = [pod for key, pods in free.items() for pod in pods[wanted[key].count if key in wanted else 0 :]]
        self._unwanted = {pod.name: self._unwanted.get(pod.name, now) for pod in beyond}
        return [pod for pod in beyond if now - self._unwanted[pod.name] >= self._settings.rhythm.grace]

    def _stuck_claims(self) -> int:
        """Counts claims with a pod that no node takes."""
        state = self._state
        return len(starved(pod for claim in state.active.values() if (pod := state.pods.get(claim.pod)) is not None))

    def _missing(
        self, wanted: dict[str, Want], free: Mapping[str, Sequence[SandboxPod]], now: float, *, pressed: bool
    ) -> list[Want]:
        making = list(self._state.making.values())
        counts = Counter({key: len(pods) for key, pods in free.items()})
        counts.update(want.shape.key for want in making)
        if pressed:
            wanted = urgent(wanted, counts)
        under_way = self._pulls.under_way(self._state.pods.values(), (want.shape.image for want in making))
        room = max(0, _MAKING - len(making))
        return list(islice(missing(wanted, counts, self._pulls, under_way, now), room))


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
    quarter of theirs. A pool is there for such moments; each sandbox that is made for it then costs several claims
    their turn."""
    return {
        key: want
        for key, want in wanted.items()
        if want.made_for is not MadeFor.POOL or free.get(key, 0) * _LOW_WATER < want.count
    }


def missing(
    wanted: Mapping[str, Want], free: Mapping[str, int], pulls: ImagePulls, under_way: dict[str, set[str]], now: float
) -> Iterator[Want]:
    """What to make ahead, one by one: a Want a pod. `under_way` grows with it."""
    for key, want in wanted.items():
        for _ in range(want.count - free.get(key, 0)):
            if not pulls.allows(want.shape.image, under_way, now):
                break
            under_way.setdefault(want.shape.registry, set()).add(want.shape.image)
            yield want


def making_room(free: Sequence[SandboxPod], ready: Collection[str], claimed: int) -> list[SandboxPod]:
    """Free pods to give up for so many claims that no node takes: first those that are furthest from ready."""
    order = sorted(free, key=lambda pod: (pod.name in ready, pod.running, -pod.created))
    return order[: max(0, claimed)]


def is_worn(pod: SandboxPod, settings: Settings, now: float) -> bool:
    """Whether a free pod is of no use any more: ended, broken, not wiped, or too near its own deadline for a lease."""
    if pod.ended or not pod.clean or (pod.trouble is not None and (pod.trouble.final or pod.trouble.image)):
        return True
    if now > pod.created + settings.spec.start_timeout_seconds and not pod.running:
        return True
    return pod.hard_stop < now + settings.spec.timeout_seconds + SPARE_SECONDS


def resettable(pod: SandboxPod, settings: Settings, now: float) -> bool:
    """Whether the pod can serve another claim soon, after its container was restarted."""
    if not pod.reusable or pod.lost or not pod.running:
        return False
    if pod.hard_stop < now + settings.spec.timeout_seconds + SPARE_SECONDS:
        return False
    return pod.restarts == 0 or now - (pod.started or now) > _STABLE_SECONDS
