"""Reconciling a run: observe, plan, carry out, report. Every event, timer and restart leads here.

While a run trains it is looked at for its progress: every 2 s where there are few runs, every 40 s where there are a
thousand. Such a tick asks only the trainer and takes the rest from the last observation, which any event about the run
makes void; so do 5 minutes, or 30 s while the cache of what runs own isn't current.

Of a run that has ended a line is kept: nothing about it but a change of its own, or the end of its time to live, is a
reason to look again.
"""

import asyncio
import json
import pickle
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gymtrain_kube.errors import KubeError, NotFoundError, RejectedError
from gymtrain_operator import kinds, metrics
from gymtrain_operator.apply import RejectionBackoff, carry_out, write_record, write_status
from gymtrain_operator.event_poster import EventPoster
from gymtrain_operator.kinds import Object
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.log import logger
from gymtrain_operator.manifests.context import Defaults
from gymtrain_operator.observe import Observer, read_run
from gymtrain_operator.reconcile.events import events_between
from gymtrain_operator.reconcile.lifecycle import has_ended
from gymtrain_operator.reconcile.observation import Observation
from gymtrain_operator.reconcile.plan import Plan, plan
from gymtrain_operator.reconcile.rejections import unanswered_condition
from gymtrain_operator.reconcile.status import with_condition
from gymtrain_operator.run_metrics import RUNS
from gymtrain_operator.run_queue import RunKey
from gymtrain_operator.trimming import trimmed_run

LOOK_SECONDS = 120.0
_REMEMBER_SECONDS = 30.0
_REMEMBER_FOLLOWED_SECONDS = 300.0
_RESYNC_SECONDS = 600.0
# After a start the first resyncs come one after the other: each is a dozen writes.
_RESYNC_APART_SECONDS = 1.2
# A step that is new at a poll is a write of a status. Of a thousand runs the step shown is 40 s old at most.
_POLLS_PER_SECOND = 25.0
_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 2.0, 40.0
# At once: each holds what is kept of its run unpacked. Trainers that swallow packets take 2 s, so this many still allow
# twice the pace.
_POLLS = 100
_RECORD_AGAIN_SECONDS = 60.0
_REPORT_AFTER_SECONDS = 5.0


@dataclass
class _Memory:
    """What is kept about a running run between two reconciles. All of it may be lost at any time.

    What is large is kept as compressed bytes: as objects it takes fifteen times as much, a run is looked at for a few
    milliseconds each 2 to 40 s, and packing and unpacking it takes half of one.

    Attributes:
        seen: the last observation, pickled and compressed; None when an event made it void.
        at: when it was made.
        resynced: when every object of the run was last written again.
        backoff: what the API server didn't take, and when it is tried again.
        record_again: when to try again after the API server refused it.
        run: the object as compressed JSON, with the status that was written last.
        version: its resourceVersion.
    """

    seen: bytes | None
    at: float
    resynced: float
    backoff: RejectionBackoff = field(default_factory=RejectionBackoff)
    record_again: float = 0.0
    run: bytes = b""
    version: str = ""

    def keep(self, run: Object) -> None:
        """Takes the run as it is now."""
        self.run = zlib.compress(json.dumps(run, separators=(",", ":")).encode(), level=1)
        self.version = str(run["metadata"].get("resourceVersion", ""))


class Reconciler:
    """Reconciles runs, one call for one run at a time."""

    def __init__(
        self,
        cluster: KubeClient,
        observer: Observer,
        defaults: Defaults,
        clock: Callable[[], float] = time.time,
        *,
        full_looks: int = 8,
    ) -> None:
        """`full_looks` are made at once at most; polls don't wait for them."""
        self._full_looks = asyncio.Semaphore(full_looks)
        self._polls = asyncio.Semaphore(_POLLS)
        self._cluster = cluster
        self._observer = observer
        self._events = EventPoster(cluster)
        self._defaults = defaults
        self._clock = clock
        self._memories: dict[RunKey, _Memory] = {}
        self._ended: dict[RunKey, str] = {}  # resourceVersion of runs about which nothing is left to do
        self._recorded: dict[RunKey, str] = {}  # records as written last: not again where somebody takes them away
        self._changed: set[RunKey] = set()  # runs with events since they were observed
        self._failing: dict[RunKey, float] = {}  # since when each reconcile of a run has ended in an error

    def event(self, key: RunKey, resource_version: str = "") -> bool:
        """Notes that the run changed, or what it owns where there is no version.

        False where there is no reason to look at it: it is the operator's own status write; the run has ended; or it
        is only known by what it owns, and its own event is still to come.
        """
        if not resource_version:
            if key not in self._memories:
                return False
        elif resource_version == self._version(key):
            return False
        self._changed.add(key)
        return True

    def knows(self, key: RunKey) -> bool:
        """Whether the run was looked at, or is known to have ended."""
        return key in self._memories or key in self._ended

    def is_settled(self, key: RunKey, resource_version: str) -> bool:
        """Whether the run has ended, and nothing is left to do about it in this version."""
        return self._ended.get(key) == resource_version

    def note_ended(self, key: RunKey, resource_version: str, state: str) -> None:
        """Notes a run that ended before this process began, about which little is left to do."""
        self._ended[key] = resource_version
        RUNS.show_ended(key, state)

    def known(self, namespace: str | None) -> set[RunKey]:
        """Returns all runs that `knows` knows, of a namespace or of all."""
        return {key for key in (*self._memories, *self._ended) if namespace in (None, key[0])}

    def _version(self, key: RunKey) -> str:
        memory = self._memories.get(key)
        return memory.version if memory else self._ended.get(key, "")

    async def reconcile(self, key: RunKey) -> float | None:
        """Brings the run one step on. Returns the seconds after which it has to be looked at again.

        Raises:
            KubeError: the API server didn't answer, or the run changed meanwhile: try again.
            TimeoutError: the look took longer than 2 minutes.
        """
        async with self._polls:
            memory = self._memories.get(key)
            last = self._last(key, memory)
            if last is not None:
                async with asyncio.timeout(LOOK_SECONDS):
                    return await self._look(key, memory, last)
        # A turn may be long in coming, where many runs are new: that is no failure of this one.
        async with self._full_looks, asyncio.timeout(LOOK_SECONDS):
            return await self._look(key, memory, None)

    async def _look(self, key: RunKey, memory: _Memory | None, last: Observation | None) -> float | None:
        begin = time.perf_counter()
        self._changed.discard(key)
        if memory is not None:
            memory.seen = None  # unless this reconcile succeeds, the next one looks at everything
        if memory is not None and last is not None:
            run = json.loads(zlib.decompress(memory.run))
        else:
            try:
                run = trimmed_run(await self._cluster.get(kinds.RUN, *key))
            except NotFoundError:
                self.forget(key)
                return None
        try:
            seen = await (self._tick(last, run) if last is not None else self._observe(key, run))
            requeue = await self._act(key, run, replace(seen, poll_seconds=self._poll_seconds()))
        except KubeError as error:
            await self._report_error(key, run, error)
            raise
        self._failing.pop(key, None)
        metrics.RECONCILE_SECONDS.labels("full" if last is None else "tick").observe(time.perf_counter() - begin)
        return requeue

    def _last(self, key: RunKey, memory: _Memory | None) -> Observation | None:
        """Returns the last observation, if it still holds and only the servers' answers can have changed."""
        if memory is None or memory.seen is None or key in self._changed:
            return None
        seen: Observation = pickle.loads(zlib.decompress(memory.seen))  # noqa: S301 -- of this process's own making
        followed = self._observer.follows(seen.run)
        remembered = _REMEMBER_FOLLOWED_SECONDS if followed else _REMEMBER_SECONDS
        return seen if self._clock() - memory.at < remembered else None

    def _poll_seconds(self) -> float:
        return min(max(len(self._memories) / _POLLS_PER_SECOND, _MIN_POLL_SECONDS), _MAX_POLL_SECONDS)

    async def _observe(self, key: RunKey, run: Object) -> Observation:
        now = self._clock()
        memory = self._memories.get(key)
        # The first look after a start takes the objects as they are: they were written by the release before.
        resynced = memory.resynced if memory else now + len(self._memories) * _RESYNC_APART_SECONDS
        resync = now - resynced > _RESYNC_SECONDS
        fresh = _Memory(None, now, now if resync else resynced)
        fresh.keep(run)
        if memory:
            fresh.backoff, fresh.record_again = memory.backoff, memory.record_again
        # Before anything is read: an event meanwhile is a reason to look again.
        self._ended.pop(key, None)
        self._memories[key] = fresh
        return await self._observer.observe(run, now, resync=resync)

    async def _tick(self, last: Observation, run: Object) -> Observation:
        """Observes by new answers of the servers alone. Since the last observation only the status was written."""
        seen = replace(last, run=read_run(run, last.run), now=self._clock(), resync=False)
        return await self._observer.ask_again(seen)

    async def _act(self, key: RunKey, run: Object, seen: Observation) -> float | None:
        wanted = plan(seen, self._defaults)
        rejections = await carry_out(self._cluster, seen, wanted, self._memories[key].backoff)
        if rejections:
            # The refusal belongs into the status; the plan says how.
            wanted = plan(replace(seen, rejections=rejections), self._defaults)
        if wanted.delete_run:
            logger().info("deleting the run: its time to live is over")
            await self._cluster.delete(kinds.RUN, *key, seen.run.uid)
            return None
        if not seen.run.deleting:
            run = await self._record(key, run, wanted)
            run = trimmed_run(await write_status(self._cluster, run, wanted.status))
        for event in wanted.events:
            logger().info("event", type=event.type, reason=event.reason, note=event.note)
            await self._events.post(run, event, seen.now)
        self._remember(key, run, seen, wanted, quiet=not rejections)
        return wanted.requeue_after

    async def _report_error(self, key: RunKey, run: Object, error: KubeError) -> None:
        """Writes what the API server answers into the status of a running run, once it does so for a while: a
        single conflict, or a moment without an answer, is ordinary."""
        now = self._clock()
        since = self._failing.setdefault(key, now)
        seen = read_run(run)
        if now - since < _REPORT_AFTER_SECONDS or seen.deleting or has_ended(seen.status):
            return
        status = with_condition(seen.status, unanswered_condition(str(error), since), seen.generation, now)
        try:
            run = trimmed_run(await write_status(self._cluster, run, status))
            RUNS.show(seen, status)
            for event in events_between(seen.status, status):
                await self._events.post(run, event, now)
        except KubeError as also:
            logger().warning("the status can't be written either", error=str(also))
        if key in self._memories:
            self._memories[key].keep(run)  # so that this write is no event

    async def _record(self, key: RunKey, run: Object, wanted: Plan) -> Object:
        """Writes the run's record, and returns the run after that. Once: a tool that keeps the object as its manifest
        has is not fought."""
        memory = self._memories[key]
        if wanted.record in (None, self._recorded.get(key)) or self._clock() < memory.record_again:
            return run
        try:
            run = await write_record(self._cluster, run, wanted.record)
        except RejectedError as error:
            logger().warning("the run's record was refused", error=str(error))
            memory.record_again = self._clock() + _RECORD_AGAIN_SECONDS
        else:
            self._recorded[key] = wanted.record
        return run

    def _remember(self, key: RunKey, run: Object, seen: Observation, wanted: Plan, *, quiet: bool) -> None:
        memory = self._memories[key]
        memory.keep(run)
        RUNS.show(seen.run, wanted.status)
        if not quiet or wanted.apply or wanted.delete or wanted.scale or wanted.owners or wanted.updates:
            return
        recorded = wanted.record in (None, self._recorded.get(key))
        if recorded and has_ended(wanted.status) and key not in self._changed:
            self._ended[key] = self._version(key)
            del self._memories[key]
            self._observer.forget(*key)
        elif seen.verdict is not None:
            memory.seen = zlib.compress(pickle.dumps(seen, pickle.HIGHEST_PROTOCOL), level=1)

    def forget(self, key: RunKey) -> None:
        """Drops what is known of a run that is gone, or that is no longer this operator's."""
        self._observer.forget(*key)
        self._memories.pop(key, None)
        self._ended.pop(key, None)
        self._changed.discard(key)
        self._failing.pop(key, None)
        self._recorded.pop(key, None)
        RUNS.forget(key)
