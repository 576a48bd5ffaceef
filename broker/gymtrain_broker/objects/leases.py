"""A lease: which request has a pod, from when, for how long, and for which life of its container."""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum


class MadeFor(StrEnum):
    """What a pod was made for."""

    CLAIM = "Claim"
    POOL = "Pool"
    LOOK_AHEAD = "LookAhead"
    PRE_PULL = "PrePull"  # for its image alone: it serves nobody


class Found(StrEnum):
    """What a request found when its turn came."""

    READY = "ready"
    STARTING = "starting"
    NONE = "none"


@dataclass(frozen=True)
class Lease:
    """Stands in an annotation of the pod.

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
        """For the annotation."""
        return json.dumps(asdict(self), separators=(",", ":"))


def from_json(text: str) -> Lease | None:
    """None where it is no lease: then the pod is nobody's."""
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
