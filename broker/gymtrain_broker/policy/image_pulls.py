"""Images that are pulled ahead: how fast, so that registries are not flooded, and by pods that serve no claim.

A registry that answers 429, and an image that can't be pulled, are left alone and then asked again: after 10 s first,
twice as long each time, at most 10 minutes. Claims that somebody waits for are never held back: the kubelet retries
those.

Nodes get images before a sandbox needs them by a pod of the image on each of so many nodes. Such a pod is a sandbox
that asks for next to nothing, so it takes no other's place, and it is leased to nobody. It stays until all pods of its
image have the image, so that each is on a node of its own. A broker that is restarted begins again; where the images
are there that is done in a moment.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from gymtrain_api import labels
from gymtrain_broker.objects.leases import MadeFor
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.objects.sandbox_pod import CONTAINER
from gymtrain_broker.policy.plan import Want, starved
from gymtrain_broker.policy.shapes import PodShape, PodShapes, registry
from gymtrain_broker.settings import Settings
from gymtrain_kube.objects import Object

_FIRST_SECONDS = 10.0
_MOST_SECONDS = 600.0
_REQUESTS = {"cpu": "1m", "memory": "16Mi", "ephemeral-storage": "1Mi"}
_KEPT_LIMITS = ("memory", "ephemeral-storage")  # a limit without a request is one, and no image needs a GPU
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class _Pause:
    until: float
    seconds: float


class ImagePulls:
    """What is known of images and registries."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()
        self._pauses: dict[str, _Pause] = {}

    def note(self, pod: SandboxPod) -> None:
        """Notes that a pod has its image: the image is good, and so is its registry."""
        if pod.pulled and pod.image not in self._seen:
            self._seen.add(pod.image)
            self._pauses.pop(pod.image, None)
            self._pauses.pop(registry(pod.image), None)

    def knows(self, image: str) -> bool:
        """Whether a node has the image."""
        return image in self._seen

    def failed(self, image: str, now: float, *, throttled: bool) -> None:
        """Notes that a sandbox made ahead couldn't get its image."""
        self._pause(image, now)
        if throttled:
            self._pause(registry(image), now)

    def under_way(self, pods: Iterable[SandboxPod], making: Iterable[str] = ()) -> dict[str, set[str]]:
        """Returns the images that are being pulled, by registry. `making`: images of pods that are not there yet."""
        found: dict[str, set[str]] = {}
        for image in (*(pod.image for pod in pods if not pod.pulled and not pod.lost), *making):
            if image not in self._seen:
                found.setdefault(registry(image), set()).add(image)
        return found

    def allows(self, image: str, under_way: dict[str, set[str]], now: float) -> bool:
        """Whether a sandbox of the image may be made ahead."""
        host = registry(image)
        if any(now < pause.until for name in (image, host) if (pause := self._pauses.get(name))):
            return False
        pulling = under_way.get(host, set())
        return image in self._seen or image in pulling or len(pulling) < self._most

    def _pause(self, name: str, now: float) -> None:
        before = self._pauses.get(name)
        if before is not None and now < before.until:
            return
        length = min(_MOST_SECONDS, before.seconds * 2) if before else _FIRST_SECONDS
        self._pauses[name] = _Pause(now + length, length)


class PrePulls:
    """The images that one run wants on its nodes."""

    def __init__(self, settings: Settings, shapes: PodShapes, pulls: ImagePulls) -> None:
        self._spec = settings.spec.pre_pull
        self._ahead = settings.spec.look_ahead.tasks
        self._shapes = shapes
        self._pulls = pulls
        self._made: dict[str, PodShape] = {}  # by image
        self._done: set[str] = set()  # shapes

    def wanted(self, announced: Iterable[str]) -> Iterator[Want]:
        """Pods that should be there: for the spec's images, then for those of tasks that get no sandbox yet."""
        upcoming = islice(announced, self._ahead, self._ahead + self._spec.tasks)
        for image in dict.fromkeys([*self._spec.images, *upcoming]):
            if image not in self._made:
                self._made[image] = pre_pull_shape(self._shapes.of(image), self._spec.nodes)
            shape = self._made[image]
            there = self._spec.nodes == 1 and self._pulls.knows(shape.image)
            if shape.key not in self._done and not there:
                yield Want(shape, self._spec.nodes, MadeFor.PRE_PULL)

    def finished(self, free: Mapping[str, Sequence[SandboxPod]]) -> list[SandboxPod]:
        """Pods whose image is on as many nodes as it can be."""
        found: list[SandboxPod] = []
        for key, pods in free.items():
            if not pods or not pods[0].for_its_image:
                continue
            have = [pod for pod in pods if pod.pulled]
            enough = len(have) >= self._spec.nodes
            no_more_nodes = bool(have) and len(pods) >= self._spec.nodes and len(starved(pods)) == len(pods) - len(have)
            if enough or no_more_nodes:
                self._done.add(key)
            if key in self._done:
                found += pods
        return found


def pre_pull_shape(shape: PodShape, nodes: int) -> PodShape:
    """Returns the shape of pods that bring an image to a node each."""
    body: Object = json.loads(json.dumps(shape.body))
    spec = body["spec"] | {"restartPolicy": "Never"}
    for container in spec["containers"]:
        if container["name"] == CONTAINER:
            limits = (container.get("resources") or {}).get("limits") or {}
            kept = {name: limits[name] for name in _KEPT_LIMITS if name in limits}
            container["resources"] = {"requests": dict(_REQUESTS), "limits": kept}
    key = hashlib.sha256(f"pull:{nodes}:{json.dumps(spec, sort_keys=True)}".encode()).hexdigest()[:16]
    if nodes > 1:
        _spread(spec, key)
    return PodShape(key, shape.image, shape.asked, reuse=False, body=body | {"spec": spec})


def _spread(spec: Object, key: str) -> None:
    """Keeps two pods of one shape from running on the same node."""
    own = {"matchLabels": {labels.SANDBOX_SHAPE: key}}
    affinity = spec.setdefault("affinity", {})
    terms = affinity.setdefault("podAntiAffinity", {}).setdefault(_REQUIRED, [])
    terms.append({"labelSelector": own, "topologyKey": "kubernetes.io/hostname"})
