"""Which pod works on which call: calls get one in the order in which they came, and wait where none has room."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import gymtrain_tracing as tracing
from gymtrain_gateway.errors import NoPodError, TooLateError
from gymtrain_gateway.pod_choice import choose
from gymtrain_gateway.pods import Pods
from gymtrain_gateway.upstream import Deadline


@dataclass(frozen=True)
class Assignment:
    """A pod that works on a call."""

    pod: str
    version: str | None  # that the pod held when the call began


@dataclass(eq=False)
class _Waiter:
    key: str
    avoid: AbstractSet[str]
    assignment: asyncio.Future[Assignment] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Dispatcher:
    """Hands out pods."""

    def __init__(self, pods: Pods, limit: int) -> None:
        self._pods = pods
        self._limit = limit
        self._waiting: deque[_Waiter] = deque()
        self.in_flight: dict[str, int] = {}
        pods.changed = self.wake

    @property
    def queued(self) -> int:
        """Calls that wait."""
        return sum(not waiter.assignment.done() for waiter in self._waiting)

    @asynccontextmanager
    async def pod(self, key: str, avoid: AbstractSet[str], deadline: Deadline) -> AsyncIterator[Assignment]:
        """A pod for the call `key` belongs to, while the block runs.

        Raises:
            NoPodError: none could take it before the deadline.
        """
        waiter = _Waiter(key, avoid)
        self._waiting.append(waiter)
        self.wake()
        try:
            with tracing.span("wait for a vLLM pod"):
                async with asyncio.timeout(deadline.left()):
                    assignment = await waiter.assignment
        except (TimeoutError, TooLateError):
            self._give_back(waiter)
            raise NoPodError(self._why(deadline)) from None
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        try:
            yield assignment
        finally:
            self._release(assignment.pod)

    def wake(self) -> None:
        """Gives waiting calls the pods that have room."""
        admissible = self._pods.admissible()
        loads = {pod: self.in_flight.get(pod, 0) for pod in admissible}
        room = sum(max(0, self._limit - load) for load in loads.values())
        skipped: list[_Waiter] = []
        while self._waiting and room > 0:
            waiter = self._waiting.popleft()
            if waiter.assignment.done():
                continue
            picked = choose(waiter.key, loads, self._limit, waiter.avoid)
            if picked is None:  # it avoids the pods that have room
                skipped.append(waiter)
                continue
            loads[picked] += 1
            room -= 1
            self.in_flight[picked] = loads[picked]
            waiter.assignment.set_result(Assignment(picked, self._pods.admissions[picked].version))
        self._waiting.extendleft(reversed(skipped))

    def _give_back(self, waiter: _Waiter) -> None:
        if waiter.assignment.done() and not waiter.assignment.cancelled():
            self._release(waiter.assignment.result().pod)
        waiter.assignment.cancel()
        if waiter in self._waiting:
            self._waiting.remove(waiter)

    def _release(self, pod: str) -> None:
        left = self.in_flight[pod] - 1
        if left:
            self.in_flight[pod] = left
        else:
            del self.in_flight[pod]
        self.wake()

    def _why(self, deadline: Deadline) -> str:
        if self._pods.admissible():
            reason = f"all vLLM pods have {self._limit} calls of this gateway each (spec.gateway.maxInFlight)"
        else:
            reason = f"no vLLM pod may answer: {self._pods.reason()}"
        return f"no vLLM pod took the call within {deadline.seconds:.0f} s (spec.gateway.timeoutSeconds): {reason}"
