"""How fast images may be pulled ahead, so that registries are not flooded.

A registry that answers 429, and an image that can't be pulled, are left alone and then asked again: after 10 s first,
twice as long each time, at most 10 minutes. Requests that somebody waits for are never held back: the kubelet retries
those.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.policy.shapes import registry

_FIRST_SECONDS = 10.0
_MOST_SECONDS = 600.0


@dataclass(frozen=True)
class _Pause:
    until: float
    seconds: float


class Pulls:
    """What is known of images and registries."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()
        self._pauses: dict[str, _Pause] = {}

    def note(self, pod: SandboxPod) -> None:
        """A pod that has its image: the image is good, and so is its registry."""
        if pod.pulled and pod.image not in self._seen:
            self._seen.add(pod.image)
            self._pauses.pop(pod.image, None)
            self._pauses.pop(registry(pod.image), None)

    def knows(self, image: str) -> bool:
        """Whether a node has the image."""
        return image in self._seen

    def failed(self, image: str, now: float, *, throttled: bool) -> None:
        """A sandbox made ahead couldn't have its image."""
        self._pause(image, now)
        if throttled:
            self._pause(registry(image), now)

    def under_way(self, pods: Iterable[SandboxPod]) -> dict[str, set[str]]:
        """Images that are being pulled, by registry."""
        found: dict[str, set[str]] = {}
        for pod in pods:
            if not pod.pulled and not pod.lost and pod.image not in self._seen:
                found.setdefault(registry(pod.image), set()).add(pod.image)
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
