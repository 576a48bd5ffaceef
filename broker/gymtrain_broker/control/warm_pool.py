"""Free pods: made before they are asked for, given up when nobody will ask or somebody needs their place."""

import logging
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import chain, islice

from gymtrain_broker.control.pod_operations import PodOperations
from gymtrain_broker.metrics import Metrics
from gymtrain_broker.objects.leases import MadeFor
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.policy import plan
from gymtrain_broker.policy.plan import Want
from gymtrain_broker.policy.pre_pulls import PrePulls
from gymtrain_broker.policy.pulls import Pulls
from gymtrain_broker.policy.shapes import PodShapes
from gymtrain_broker.policy.state import Doing, State
from gymtrain_broker.settings import Settings
from gymtrain_kube.errors import KubeError

logger = logging.getLogger(__name__)

_MAKING = 32  # at once; what is asked for later would have to wait for these, should the control plane become slow
_BACK = 2  # times the wanted number may be free, when sandboxes come back faster than they are asked for


class WarmPool:
    """The free pods of a run."""

    def __init__(
        self,
        settings: Settings,
        state: State,
        shapes: PodShapes,
        operations: PodOperations,
        pulls: Pulls,
        metrics: Metrics,
        pressed: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._state = state
        self._shapes = shapes
        self._operations = operations
        self._pulls = pulls
        self._pre_pulls = PrePulls(settings, shapes, pulls)
        self._metrics = metrics
        self._pressed = pressed
        self._unwanted: dict[str, float] = {}

    def wants_back(self, pod: SandboxPod, now: float) -> bool:
        """Whether a pod whose claim has ended is started anew instead of deleted."""
        want = next((pool for pool in self._pools() if pool.shape.key == pod.shape), None)
        if want is None or not plan.resettable(pod, self._settings, now):
            return False
        resetting = sum(
            busy.doing is Doing.RESETTING and self._state.pods[name].shape == pod.shape
            for name, busy in self._state.busy.items()
            if name in self._state.pods
        )
        return sum(1 for _ in self._state.free(pod.shape)) + resetting < _BACK * want.count

    def step(self, now: float) -> None:
        """One round."""
        free = self._usable(now)
        for pod in self._pre_pulls.finished(free):
            free[pod.shape].remove(pod)
            self._operations.delete(pod, now, urgent=False)
        wanted = self._wanted()
        self._drop_surplus(wanted, free, now)
        if self._cramped(free, now):
            return
        counts = {key: len(pods) + self._operations.making[key] for key, pods in free.items()}
        for key in self._operations.making:
            counts.setdefault(key, self._operations.making[key])
        if self._pressed():
            wanted = plan.urgent(wanted, counts)
        under_way = self._pulls.under_way(self._state.pods.values())
        room = max(0, _MAKING - self._operations.making.total())
        for want in islice(plan.missing(wanted, counts, self._pulls, under_way, now), room):
            self._operations.make_ahead(want, partial(self._failed, want.shape.image, now))

    def _pools(self) -> list[Want]:
        """Pools follow what requests for their image ask for: a sandbox with less would serve none of them."""
        return [
            Want(self._shapes.of(pool.image, self._state.asked(pool.image)), pool.replicas, MadeFor.POOL)
            for pool in self._settings.spec.warm_pools
        ]

    def _wanted(self) -> dict[str, Want]:
        """The queue comes first: those that wait in it are the next to need a sandbox."""
        ahead = self._settings.spec.look_ahead.tasks
        queued = (self._state.claims[one].shape for one in self._state.queue) if ahead else ()
        coming = (self._shapes.of(one.image, self._state.resources_of(one)) for one in self._state.announced)
        wanted = plan.wants(self._pools(), chain(queued, coming), ahead)
        pulls = self._pre_pulls.wanted(one.image for one in self._state.announced)
        return wanted | {want.shape.key: want for want in pulls}

    def _usable(self, now: float) -> dict[str, list[SandboxPod]]:
        """Free pods by shape, those that are ready first; the others are deleted."""
        free: dict[str, list[SandboxPod]] = defaultdict(list)
        for pod in list(self._state.pods.values()):
            if not self._state.is_free(pod):
                continue
            if not plan.worn(pod, self._settings, now):
                free[pod.shape].append(pod)
                continue
            trouble = pod.trouble
            if trouble is not None:
                logger.info("pod %s, made ahead: %s: %s", pod.name, trouble.reason, trouble.message)
                if trouble.image:
                    self._metrics.pull_failures.labels("throttled" if trouble.throttled else trouble.reason).inc()
                self._pulls.failed(pod.image, now, throttled=trouble.throttled)
            self._operations.delete(pod, now, urgent=False)
        for pods in free.values():
            pods.sort(key=lambda pod: (not self._state.is_ready(pod), pod.created, pod.name))
        return free

    def _drop_surplus(self, wanted: dict[str, Want], free: dict[str, list[SandboxPod]], now: float) -> None:
        beyond = {pod.name for key, pods in free.items() for pod in pods[wanted[key].count if key in wanted else 0 :]}
        self._unwanted = {name: self._unwanted.get(name, now) for name in beyond}
        for pod in list(plan.surplus(wanted, free, self._unwanted, self._settings, now)):
            free[pod.shape].remove(pod)
            self._operations.delete(pod, now, urgent=False)

    def _cramped(self, free: dict[str, list[SandboxPod]], now: float) -> bool:
        """Whether the nodes are full. Then nothing is made ahead, and requests get the place of free pods."""
        state = self._state
        claimed = [pod for claim in state.active.values() if (pod := state.pods.get(claim.pod)) is not None]
        stuck = len(plan.starved(claimed))
        spare = [pod for pods in free.values() for pod in pods if not pod.for_its_image]  # those take next to no room
        ending = sum(state.word(pod) == "ending" for pod in state.pods.values()) if stuck else 0
        for pod in plan.making_room(spare, {pod.name for pod in spare if state.is_ready(pod)}, stuck - ending):
            logger.info("pod %s, made ahead, makes room for a request that no node takes", pod.name)
            self._operations.delete(pod, now, urgent=True)
        return bool(stuck or plan.starved(spare))

    def _failed(self, image: str, now: float, error: KubeError) -> None:
        logger.warning("can't make a sandbox of %s ahead: %s", image, error)
        self._pulls.failed(image, now, throttled=False)
