"""A lease: the annotation that says which claim has a pod, since when, how long, and for which life of its container.

The claim's request stands beside it, so that a broker that has just started knows both.
"""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from gymtrain_api import labels
from gymtrain_api.sandboxes import SandboxRequest
from gymtrain_api.times import to_text_with_milliseconds
from gymtrain_kube.objects import Object


class MadeFor(StrEnum):
    """What a pod was made for."""

    CLAIM = "Claim"
    POOL = "Pool"
    LOOK_AHEAD = "LookAhead"
    PRE_PULL = "PrePull"  # for its image alone: it serves nobody


class Found(StrEnum):
    """What a claim found when its turn came."""

    READY = "ready"
    STARTING = "starting"
    NONE = "none"


@dataclass(frozen=True)
class Lease:
    """What stands in the annotation.

    Attributes:
        id: of the sandbox.
        asked_at: when the request came.
        at: when the pod was given to it.
        ttl: seconds that it may run.
        start_seconds: that it may take to start.
        restarts: restartCount of the container at that time. A lease is void when it has been restarted since.
    """

    id: str
    asked_at: float
    at: float
    ttl: float
    start_seconds: float
    restarts: int
    found: Found

    def to_json(self) -> str:
        """Returns the text of the annotation."""
        return json.dumps(asdict(self), separators=(",", ":"))


def from_json(text: str) -> Lease | None:
    """Reads a lease; None if the text is none, and then the pod is nobody's."""
    try:
        fields = json.loads(text)
        return Lease(
            id=str(fields["id"]),
            asked_at=float(fields["asked_at"]),
            at=float(fields["at"]),
            ttl=float(fields["ttl"]),
            start_seconds=float(fields["start_seconds"]),
            restarts=int(fields["restarts"]),
            found=Found(fields["found"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def lease_annotations(lease: Lease, request: SandboxRequest) -> dict[str, str]:
    """Returns the annotations of a leased pod."""
    return {
        labels.SANDBOX_CLAIM: lease.id,
        labels.SANDBOX_LEASE: lease.to_json(),
        labels.SANDBOX_REQUEST: request.model_dump_json(by_alias=True, exclude_defaults=True),
        labels.SANDBOX_TASK: request.task,
        labels.SANDBOX_EXPIRES_AT: to_text_with_milliseconds(lease.at + lease.start_seconds + lease.ttl),
    }


def lease_patch(before: str, lease: Lease, request: SandboxRequest) -> list[Object]:
    """JSON patch that leases a pod, if no one except `before` has leased it."""
    place = "/metadata/annotations/"
    test = {"op": "test", "path": place + _escaped(labels.SANDBOX_CLAIM), "value": before}
    values = lease_annotations(lease, request)
    return [test, *({"op": "add", "path": place + _escaped(name), "value": text} for name, text in values.items())]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
