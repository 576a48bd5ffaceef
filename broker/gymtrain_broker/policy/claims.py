"""Claims: requests for a sandbox, from their arrival until some time after their end. The queue of those that wait."""

import secrets
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from gymtrain_api.sandboxes import SandboxRequest, SandboxState
from gymtrain_broker.objects.leases import Found, Lease
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
        released: whether its pod was deleted, or restarted, after its end.
        waiters: requests of its client that are open now.
        waited_at: when the last one ended.
        idle: seconds without a call, as its daemon said at `heard_at`.
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

    @property
    def waiting(self) -> bool:
        """Queued or Starting."""
        return self.state in _WAITING

    @property
    def final(self) -> bool:
        """Closed or Failed."""
        return self.state in _FINAL

    def lease(self, at: float, start_seconds: float, restarts: int) -> Lease:
        """The lease of a pod whose container has been restarted so often."""
        return Lease(self.id, self.asked_at, at, self.ttl, start_seconds, restarts, self.found)

    @property
    def expires_at(self) -> float | None:
        """When it is closed at the latest, once it runs."""
        return None if self.ready_at is None else self.ready_at + self.ttl


def new_id() -> str:
    """Returns an id that can't be guessed, though every route asks for the token."""
    return f"sb-{secrets.token_hex(8)}"


def adopted(pod: SandboxPod, shape: PodShape, now: float) -> Claim | None:
    """The claim that a pod tells of, for a broker that has just started and doesn't know it."""
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


class FairQueue:
    """Ids of claims that wait, by task: tasks take turns, and a task's own claims keep their order.

    With one claim each, tasks are served in the order in which they came. A task with 64 claims gets one in every round
    of all tasks, so it doesn't starve another's. Claims without a task count as those of one.
    """

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, deque[str]] = OrderedDict()
        self._task_of: dict[str, str] = {}
        self._positions: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self._task_of)

    def __iter__(self) -> Iterator[str]:
        """Yields ids in the order of their turns, as long as nobody else comes."""
        return self._order()

    def put(self, item: str, task: str) -> None:
        """Adds an id after those of its task."""
        self._tasks.setdefault(task, deque()).append(item)
        self._noted(item, task)

    def put_back(self, item: str, task: str) -> None:
        """Adds an id before all others: it had its turn, but got nothing."""
        self._tasks.setdefault(task, deque()).appendleft(item)
        self._tasks.move_to_end(task, last=False)
        self._noted(item, task)

    def pop(self) -> str:
        """Takes out the next id; its task goes to the end of the round.

        Raises:
            KeyError: the queue is empty.
        """
        task, items = next(iter(self._tasks.items()), ("", None))
        if items is None:
            raise KeyError("the queue is empty")
        item = items.popleft()
        self._forget(item, task)
        if task in self._tasks:
            self._tasks.move_to_end(task)
        return item

    def remove(self, item: str) -> None:
        """Takes out an id, if it is there."""
        task = self._task_of.get(item)
        if task is not None:
            self._tasks[task].remove(item)
            self._forget(item, task)

    def position(self, item: str) -> int | None:
        """Returns the place of an id, from 1, as long as nobody else comes."""
        if self._positions is None:
            self._positions = {one: place for place, one in enumerate(self._order(), start=1)}
        return self._positions.get(item)

    def _order(self) -> Iterator[str]:
        left = [deque(items) for items in self._tasks.values()]
        while left:
            for items in left:
                yield items.popleft()
            left = [items for items in left if items]

    def _noted(self, item: str, task: str) -> None:
        self._task_of[item] = task
        self._positions = None

    def _forget(self, item: str, task: str) -> None:
        del self._task_of[item]
        self._positions = None
        if not self._tasks[task]:
            del self._tasks[task]
