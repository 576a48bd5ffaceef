"""A request for a sandbox, from its arrival until some time after its end."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from gymtrain_api.sandboxes import SandboxRequest, SandboxState
from gymtrain_broker.objects.leases import Found
from gymtrain_broker.objects.pod_view import SandboxPod
from gymtrain_broker.policy.shapes import PodShape

_WAITING = (SandboxState.QUEUED, SandboxState.STARTING)
_FINAL = (SandboxState.CLOSED, SandboxState.FAILED)
_FIND_SECONDS = 60.0  # for a broker that starts to reach the daemons of what runs


@dataclass(eq=False)
class Claim:
    """What the broker knows of one request.

    Attributes:
        start_seconds: that it may take from its turn to the running sandbox.
        turn_by: when it must have had its turn.
        pod: name of its pod; empty before its turn.
        confirmed: whether the API server has shown its pod with its lease; before, the pod's state says nothing of it.
        released: whether its pod was deleted, or started anew, after its end.
        waiters: requests of its client that are open now.
        waited_at: when the last one ended.
        idle: seconds without a call, as its daemon said at `heard_at`.
        listeners: called when it is neither Queued nor Starting any more, or when they shall look anew.
    """

    id: str
    request: SandboxRequest
    shape: PodShape
    asked_at: float
    ttl: float
    turn_by: float
    start_seconds: float
    state: SandboxState = SandboxState.QUEUED
    reason: str = ""
    message: str = ""
    pod: str = ""
    confirmed: bool = False
    found: Found = Found.NONE
    leased_at: float | None = None
    ready_at: float | None = None
    ended_at: float | None = None
    released: bool = False
    waiters: int = 0
    waited_at: float = 0.0
    idle: float = 0.0
    heard_at: float = 0.0
    listeners: set[Callable[[], None]] = field(default_factory=set)

    def settle(self) -> None:
        """Tells the listeners."""
        for listener in list(self.listeners):
            listener()

    @property
    def waiting(self) -> bool:
        """Queued or Starting."""
        return self.state in _WAITING

    @property
    def final(self) -> bool:
        """Closed or Failed."""
        return self.state in _FINAL

    @property
    def group(self) -> str:
        """Requests of one group take turns with those of others; without a task they are one group."""
        return self.request.task

    @property
    def expires_at(self) -> float | None:
        """When it is closed at the latest, once it runs."""
        return None if self.ready_at is None else self.ready_at + self.ttl


def new_id() -> str:
    """Not to be guessed, though every route asks for the token."""
    return f"sb-{secrets.token_hex(8)}"


def adopted(pod: SandboxPod, shape: PodShape, now: float) -> Claim | None:
    """The claim that a pod tells of, for a broker that doesn't know it: it was started anew."""
    lease, request = pod.leased, pod.request
    if lease is None or request is None:
        return None
    return Claim(
        id=lease.id,
        request=request,
        shape=shape,
        asked_at=lease.asked_at,
        ttl=lease.ttl,
        turn_by=lease.at,
        start_seconds=max(lease.start_seconds, now - lease.at + _FIND_SECONDS),
        ready_at=max(lease.at, pod.started or lease.at) if pod.running else None,
        state=SandboxState.STARTING,
        pod=pod.name,
        confirmed=True,
        found=lease.found,
        leased_at=lease.at,
        waited_at=now,
    )
