"""One reconcile: observe, plan, carry out, report. Every event, timer and restart leads here.

While a run trains it is looked at every 2 s for its progress. Such a tick asks only the trainer and takes
the rest from the last observation, which any event about the run makes void; so do 30 s.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gymtrain_operator import kinds, metrics
from gymtrain_operator.apply import carry_out
from gymtrain_operator.cluster import Cluster, Object
from gymtrain_operator.errors import NotFoundError
from gymtrain_operator.log import logger
from gymtrain_operator.manifests.context import Defaults
from gymtrain_operator.observe import Observer, read_run
from gymtrain_operator.queues import Key
from gymtrain_operator.reconcile.observation import Observation
from gymtrain_operator.reconcile.plan import Plan, plan
from gymtrain_operator.reporting import post_event, write_status

_REMEMBER_SECONDS = 30.0
_RESYNC_SECONDS = 600.0


@dataclass
class _Memory:
    """What is kept of a run between two reconciles. All of it may be lost at any time.

    Attributes:
        run: the object, with the status that was written last.
        seen: the last observation; None when an event made it void.
        at: when it was made.
        resynced: when every object of the run was last written again.
        state: for the metric.
    """

    run: Object
    seen: Observation | None
    at: float
    resynced: float
    state: str = ""


class Reconciler:
    """Reconciles runs, one call for one run at a time."""

    def __init__(
        self, cluster: Cluster, observer: Observer, defaults: Defaults, clock: Callable[[], float] = time.time
    ) -> None:
        self._cluster = cluster
        self._observer = observer
        self._defaults = defaults
        self._clock = clock
        self._memories: dict[Key, _Memory] = {}
        self._changed: set[Key] = set()  # runs with events since they were observed

    def event(self, key: Key, resource_version: str = "") -> bool:
        """Something about the run changed. False where it is the operator's own status write."""
        memory = self._memories.get(key)
        if memory and resource_version and resource_version == memory.run["metadata"].get("resourceVersion"):
            return False
        self._changed.add(key)
        return True

    async def reconcile(self, key: Key) -> float | None:
        """Brings the run one step on. Returns seconds after which it wants to be looked at again.

        Raises:
            ClusterError: the API server didn't answer, or the run changed meanwhile: try again.
        """
        begin = time.perf_counter()
        memory = self._memories.get(key)
        last = self._last(key, memory)
        self._changed.discard(key)
        if memory is not None and last is not None:
            memory.seen = None  # unless this reconcile succeeds, the next one looks at everything
            run, seen = memory.run, await self._tick(last, memory.run)
        else:
            try:
                run = await self._cluster.get(kinds.RUN, *key)
            except NotFoundError:
                self._forget(key)
                return None
            seen = await self._observe(key, run)
        requeue = await self._act(key, run, seen)
        metrics.RECONCILE_SECONDS.labels("full" if last is None else "tick").observe(time.perf_counter() - begin)
        return requeue

    def _last(self, key: Key, memory: _Memory | None) -> Observation | None:
        """The last observation, if it still holds and only the servers' answers can have changed."""
        if memory is None or memory.seen is None or memory.seen.verdict is None or key in self._changed:
            return None
        return memory.seen if self._clock() - memory.at < _REMEMBER_SECONDS else None

    async def _observe(self, key: Key, run: Object) -> Observation:
        now = self._clock()
        memory = self._memories.get(key)
        # The first look after a start takes the objects as they are: they were written by the release before.
        resynced = memory.resynced if memory else now
        resync = now - resynced > _RESYNC_SECONDS
        seen = await self._observer.observe(run, now, resync=resync)
        state = memory.state if memory else ""
        self._memories[key] = _Memory(run, None, now, now if resync else resynced, state)
        return seen

    async def _tick(self, last: Observation, run: Object) -> Observation:
        """The last observation with fresh answers of the servers."""
        seen = replace(last, run=read_run(run), now=self._clock(), resync=False)
        return await self._observer.ask_again(seen)

    async def _act(self, key: Key, run: Object, seen: Observation) -> float | None:
        wanted = plan(seen, self._defaults)
        rejections = await carry_out(self._cluster, seen, wanted)
        if rejections:
            logger().warning("refused by the API server", rejections=[str(r) for r in rejections])
            # The refusal belongs into the status; the plan says how.
            wanted = plan(replace(seen, rejections=rejections), self._defaults)
        if wanted.delete_run:
            logger().info("deleting the run: its time to live is over")
            await self._cluster.delete(kinds.RUN, *key, seen.run.uid)
            return None
        if not seen.run.deleting:
            run = await write_status(self._cluster, run, wanted.status)
        for event in wanted.events:
            logger().info("event", type=event.type, reason=event.reason, note=event.note)
            await post_event(self._cluster, run, event, seen.now)
        self._remember(key, run, seen, wanted, quiet=not rejections)
        return wanted.requeue_after

    def _remember(self, key: Key, run: Object, seen: Observation, wanted: Plan, *, quiet: bool) -> None:
        memory = self._memories[key]
        memory.run = run
        if quiet and not (wanted.apply or wanted.delete or wanted.scale):
            memory.seen = seen
        self._count(memory, wanted.status.state or "")

    def _forget(self, key: Key) -> None:
        memory = self._memories.pop(key, None)
        self._changed.discard(key)
        if memory:
            self._count(memory, "")

    def _count(self, memory: _Memory, state: str) -> None:
        if state == memory.state:
            return
        if memory.state:
            metrics.RUNS.labels(memory.state).dec()
        if state:
            metrics.RUNS.labels(state).inc()
        memory.state = state
