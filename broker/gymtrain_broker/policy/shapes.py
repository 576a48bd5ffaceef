"""What a sandbox is made from, so that one made ahead can serve a request that comes later."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gymtrain_api.sandboxes import SandboxResources
from gymtrain_api.spec import ImageRewrite
from gymtrain_broker.objects import quantities, sandbox_pod
from gymtrain_broker.settings import Settings

_CACHED = 4096
_DEFAULT_REGISTRY = "docker.io"


@dataclass(frozen=True)
class PodShape:
    """Pods of one shape differ in their names only.

    Attributes:
        key: the same for the same pods; changes with the settings of the run, so that pods of old ones are replaced.
        image: what is pulled.
        asked: the image as the environment named it.
        reuse: whether the container is restarted for another task.
        body: spec of the pod.
    """

    key: str
    image: str
    asked: str
    reuse: bool
    body: dict[str, Any] = field(compare=False, hash=False)

    @property
    def registry(self) -> str:
        """Where the image comes from."""
        return registry(self.image)


def rewritten(image: str, rewrites: Sequence[ImageRewrite]) -> str:
    """The image that is pulled instead. A rewrite fits the name as it is asked for, or written out in full."""
    full = in_full(image)
    for rewrite in rewrites:
        for name in (image, full):
            if name.startswith(rewrite.from_):
                return rewrite.to + name.removeprefix(rewrite.from_)
    return image


def in_full(image: str) -> str:
    """The name with its registry: a/b is docker.io/a/b, and a is docker.io/library/a."""
    if _names_registry(image):
        return image
    return f"{_DEFAULT_REGISTRY}/{image}" if "/" in image else f"{_DEFAULT_REGISTRY}/library/{image}"


def registry(image: str) -> str:
    """Host of an image's registry, by the rule that container runtimes follow."""
    return image.partition("/")[0] if _names_registry(image) else _DEFAULT_REGISTRY


def _names_registry(image: str) -> bool:
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


class PodShapes:
    """The shapes of one run."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[tuple[str, SandboxResources | None], PodShape] = {}
        spec = settings.spec
        self._limits = quantities.requirements(spec.resources)["limits"]
        self._ceilings = quantities.ceilings(settings.max_resources, spec.max_resources, self._limits)
        restarts = settings.backend == "Pod"  # else the operator has chosen it because no pool asks for that
        self._reuse = {
            rewritten(pool.image, spec.image_rewrites): restarts and pool.reuse == "Restart" for pool in spec.warm_pools
        }

    def of(self, image: str, resources: SandboxResources | None = None) -> PodShape:
        """Returns the shape that serves a request: its pool's, where its image has one and it asks for no more."""
        pulled = rewritten(image, self._settings.spec.image_rewrites)
        pooled = pulled in self._reuse and quantities.fits(resources, self._limits)
        key = (image, None if pooled else resources)
        if key not in self._made:
            if len(self._made) >= _CACHED:
                self._made.clear()
            self._made[key] = self._make(pulled, image, key[1], reuse=self._reuse.get(pulled, False))
        return self._made[key]

    def above_ceilings(self, resources: SandboxResources | None) -> list[str]:
        """What a request asks for that no sandbox of this run may have."""
        return quantities.above(resources, self._ceilings)

    def _make(self, pulled: str, asked: str, resources: SandboxResources | None, *, reuse: bool) -> PodShape:
        body = sandbox_pod.body(self._settings, pulled, resources, reuse=reuse)
        restarts = body["spec"]["restartPolicy"] == "Always"
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return PodShape(hashlib.sha256(text.encode()).hexdigest()[:16], pulled, asked, restarts, body)
