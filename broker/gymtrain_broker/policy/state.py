"""What the broker knows. All of it but the queue and the announcement can be read from the pods."""

from collections.abc import Iterator
from dataclasses import dataclass

from gymtrain_api.sandboxes import AnnouncedTask, SandboxResources
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.policy.claims import Claim, FairQueue
from gymtrain_broker.policy.plan import DeletePod, ResetPod, TakePod, Want

_REMEMBERED = 1024


@dataclass(frozen=True)
class Busy:
    """A pod with a step under way, or one whose effect has not shown yet: no other step may touch it."""

    step: TakePod | ResetPod | DeletePod
    since: float


@dataclass(frozen=True)
class Answered:
    """The daemon of a pod answered.

    Attributes:
        restarts: restartCount of its container at that time.
        instance: what it called itself, another name after each start.
    """

    restarts: int
    instance: str


class State:
    """Pods, claims, queue. Only the controller changes it."""

    def __init__(self) -> None:
        self.pods: dict[str, SandboxPod] = {}
        self.ready: dict[str, Answered] = {}
        self.busy: dict[str, Busy] = {}
        self.making: dict[str, Want] = {}  # pods being made ahead, by name
        self.claims: dict[str, Claim] = {}
        self.keys: dict[str, str] = {}  # claim by idempotency key
        self.holders: dict[str, Claim] = {}  # claim by pod
        self.active: dict[str, Claim] = {}  # Starting and Running
        self.queue = FairQueue()
        self.announced: list[AnnouncedTask] = []
        self._asked: dict[str, SandboxResources | None] = {}  # what the last request for an image asked for
        self._asked_of: dict[str, SandboxResources | None] = {}  # the same by family of images
        self._by_shape: dict[str, dict[str, SandboxPod]] = {}

    def put(self, pod: SandboxPod) -> bool:
        """Notes a pod as just seen; False if a newer state of it is known."""
        known = self.pods.get(pod.name)
        if known is not None and pod.version and known.version > pod.version:
            return False
        self.pods[pod.name] = pod
        self._by_shape.setdefault(pod.shape, {})[pod.name] = pod
        return True

    def drop(self, name: str) -> SandboxPod | None:
        """Forgets a pod that is gone, and returns it."""
        pod = self.pods.pop(name, None)
        self.ready.pop(name, None)
        self.busy.pop(name, None)
        if pod is not None:
            same = self._by_shape[pod.shape]
            del same[name]
            if not same:
                del self._by_shape[pod.shape]
        return pod

    def step_on(self, pod: SandboxPod) -> TakePod | ResetPod | DeletePod | None:
        """Returns the step that is under way on a pod."""
        busy = self.busy.get(pod.name)
        return None if busy is None else busy.step

    def is_ready(self, pod: SandboxPod) -> bool:
        """Whether its daemon answered, in this life of its container."""
        answered = self.ready.get(pod.name)
        return pod.running and answered is not None and answered.restarts == pod.restarts

    def is_free(self, pod: SandboxPod) -> bool:
        """Whether it can be leased."""
        held = pod.name in self.busy or pod.name in self.holders
        return not held and not pod.lost and pod.leased is None

    def free(self, shape: str) -> Iterator[SandboxPod]:
        """Yields pods of a shape that can be leased, the oldest first."""
        return (pod for pod in self._by_shape.get(shape, {}).values() if self.is_free(pod))

    def add(self, claim: Claim) -> None:
        """Adds a claim."""
        self.claims[claim.id] = claim
        if claim.request.key is not None:
            self.keys[claim.request.key] = claim.id
        image = claim.request.image
        for known, name in ((self._asked, image), (self._asked_of, _family(image))):
            if len(known) >= _REMEMBERED:
                known.clear()
            known[name] = claim.request.resources

    def asked(self, image: str) -> SandboxResources | None:
        """Returns the resources that claims for an image ask for, as far as is known."""
        return self._asked.get(image)

    def resources_of(self, task: AnnouncedTask) -> SandboxResources | None:
        """Returns the resources that an announced task will ask for: its own, or those of the last claim like it."""
        return task.resources or self.asked(task.image) or self._asked_of.get(_family(task.image))

    def drawn(self, claim: Claim) -> None:
        """Removes the announcement of a claim that has come: its task's, or one for its image if the names differ."""
        same = [one for one in self.announced if one.image == claim.request.image]
        if same:
            self.announced.remove(next((one for one in same if one.task == claim.request.task), same[0]))

    def forget(self, claim: Claim) -> None:
        """Removes a claim that nobody will ask for any more."""
        del self.claims[claim.id]
        key = claim.request.key
        if key is not None and self.keys.get(key) == claim.id:
            del self.keys[key]

    def hold(self, claim: Claim, pod: str) -> None:
        """Gives a pod to a claim."""
        claim.pod = pod
        self.holders[pod] = claim

    def let_go(self, claim: Claim) -> None:
        """Takes its pod from a claim."""
        if self.holders.get(claim.pod) is claim:
            del self.holders[claim.pod]

    def word(self, pod: SandboxPod) -> str:
        """Returns the state of a pod in a word, for the metrics."""
        step = self.step_on(pod)
        if pod.lost or isinstance(step, DeletePod):
            return "ending"
        if isinstance(step, ResetPod):
            return "resetting"
        if pod.for_its_image:
            return "pulling"
        if pod.name in self.holders or pod.leased is not None:
            return "leased"
        return "ready" if self.is_ready(pod) else "starting"


def _family(image: str) -> str:
    """The image name up to its last slash: an environment's images share it, and its tasks need the same resources."""
    return image.rpartition("/")[0]
