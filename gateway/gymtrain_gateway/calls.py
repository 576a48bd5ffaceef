"""A call and its tries: on one pod, and on another where the pod is the reason that it failed."""

import asyncio
from collections.abc import Awaitable, Callable

from gymtrain_gateway.dispatch import Assignment, Dispatcher
from gymtrain_gateway.errors import NoPodError, PodFailedError
from gymtrain_gateway.metrics import Metrics
from gymtrain_gateway.pods import Pods
from gymtrain_gateway.settings import TRIES
from gymtrain_gateway.upstream import Deadline

_AGAIN_SECONDS = 0.2


class Calls:
    """Runs work on pods."""

    def __init__(self, pods: Pods, dispatcher: Dispatcher, metrics: Metrics) -> None:
        self._pods = pods
        self._dispatcher = dispatcher
        self._metrics = metrics

    async def run[Answer](
        self, key: str, deadline: Deadline, work: Callable[[Assignment], Awaitable[Answer]]
    ) -> Answer:
        """What `work` returns on the first pod that does it.

        Raises:
            CallError: what `work` raised, but PodFailedError only after the last try; NoPodError if there was none.
        """
        avoid: set[str] = set()
        failure: PodFailedError | None = None
        for tried in range(TRIES):
            if failure is not None:
                await asyncio.sleep(min(_AGAIN_SECONDS * tried, deadline.left()))
            try:
                async with self._dispatcher.pod(key, avoid, deadline) as assignment:
                    try:
                        return await work(assignment)
                    except PodFailedError as error:
                        failure = error
                        self._metrics.retries.labels(error.reason).inc()
                        avoid.add(assignment.pod)
                        if error.reason == "connection":
                            self._pods.failed(assignment.pod, str(error))
            except NoPodError as error:
                if failure is None:
                    raise
                # A pod took the call and failed. It may be the call that does this, so it doesn't count as waiting.
                raise PodFailedError(failure.reason, f"failed, and then {error}; the failure: {failure}") from error
        assert failure is not None
        raise PodFailedError(failure.reason, f"failed {TRIES} times; the last: {failure}") from failure
