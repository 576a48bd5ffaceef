"""A call and its tries: on one pod, and on another where the pod is the reason that it failed."""

import asyncio
from collections.abc import Awaitable, Callable

from gymtrain_gateway.deadline import Deadline
from gymtrain_gateway.dispatch import Dispatcher, Lease
from gymtrain_gateway.errors import PodFailedError
from gymtrain_gateway.metrics import Metrics
from gymtrain_gateway.pods import Pods
from gymtrain_gateway.settings import TRIES

_AGAIN_SECONDS = 0.2


class Calls:
    """Runs work on pods."""

    def __init__(self, pods: Pods, dispatcher: Dispatcher, metrics: Metrics) -> None:
        self._pods = pods
        self._dispatcher = dispatcher
        self._metrics = metrics

    async def run[Answer](self, key: str, deadline: Deadline, work: Callable[[Lease], Awaitable[Answer]]) -> Answer:
        """What `work` returns on the first pod that does it.

        Raises:
            CallError: what `work` raised, but PodFailedError only after the last try.
        """
        avoid: set[str] = set()
        for attempt in range(1, TRIES + 1):
            async with self._dispatcher.pod(key, avoid, deadline) as lease:
                try:
                    return await work(lease)
                except PodFailedError as error:
                    self._metrics.retries.labels(error.reason).inc()
                    avoid.add(lease.pod)
                    if error.reason == "connection":
                        self._pods.failed(lease.pod, str(error))
                    if attempt == TRIES:
                        raise PodFailedError(error.reason, f"failed {TRIES} times; the last: {error}") from error
            await asyncio.sleep(min(_AGAIN_SECONDS * attempt, deadline.left()))
        raise AssertionError("the last try returns or raises")
