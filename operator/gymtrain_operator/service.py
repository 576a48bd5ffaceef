"""The running operator: watches fill cache and queue, workers empty the queue, a resync makes up for lost events."""

import asyncio
import math
import random
import time
from collections.abc import Sequence
from contextlib import suppress

import structlog

from gymtrain_kube.errors import ConflictError, KubeError, UnreachableError
from gymtrain_operator import kinds, metrics, watching
from gymtrain_operator.child_cache import ChildCache
from gymtrain_operator.errors import LostLeaseError
from gymtrain_operator.following import followers
from gymtrain_operator.health import Health
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.log import logger
from gymtrain_operator.reconciler import Reconciler
from gymtrain_operator.run_queue import RunKey, RunQueue
from gymtrain_operator.selected_namespaces import SelectedNamespaces

RESYNC_SECONDS = 60.0
CRD_POLL_SECONDS = 2.0
_FIRST_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 60.0
# Events come in bursts: one look a moment later serves them all.
_DEBOUNCE_SECONDS = 0.15
# Runs that ended before this process began, of which there may be thousands, are looked at without haste. The operator
# before may have been stopped while it cleared away what ended lately. Of what ended long ago almost surely nothing is
# left to do, so that ten thousand of them must be no load: one after the other, until its time to live is over.
_ENDED_SECONDS = 300.0
_RECENT_SECONDS = 86_400.0
_ENDED_APART_SECONDS = 1.0
# A poll of a trainer that swallows packets takes 2 s, and must hold up nobody: there are 25 polls a second at most.
_POLLS_AT_ONCE = 50
# Runs of a namespace that was just labelled are waited for by somebody; thousands of ended ones must hold up nobody.
_SELECTED_SECONDS = 2.0
_SELECTED_PER_SECOND = 25.0
# How long the first reconcile waits for the watches. What is read before them can't be kept.
_FIRST_WATCH_SECONDS = 15.0


class Service:
    """Everything that runs while this replica leads."""

    def __init__(
        self,
        cluster: KubeClient,
        reconciler: Reconciler,
        namespaces: Sequence[str],
        health: Health,
        cache: ChildCache | None = None,
        *,
        selected: SelectedNamespaces | None = None,
        with_kueue: bool = False,
    ) -> None:
        """
        Args:
            cache: the one that the reconciler's observer reads.
            selected: those of `namespaces`, or of all, whose runs are looked after.
            with_kueue: runs may wait in queues of Kueue.
        """
        self._cluster = cluster
        self._cache = cache or ChildCache()
        self._cache.on_change = self.enqueue
        self._reconciler = reconciler
        self._namespaces = list(namespaces)
        self._selected = selected
        self._health = health
        self._with_kueue = with_kueue
        self._queue = RunQueue()
        self._failures: dict[RunKey, int] = {}
        self._next_turn = 0.0  # by time.monotonic(): that of the next run that ended long ago
        self._not_before: dict[RunKey, float] = {}  # by time.monotonic(): when the API server wants to be asked again

    async def run(self, workers: int, stop: asyncio.Event) -> None:
        """Watches, resyncs and reconciles until `stop`; `workers` is what the reconciler makes of full looks at once.

        Raises:
            ExceptionGroup: a part of the service ended in an error, and all the others were stopped.
        """
        await self._wait_for_crd(stop)
        if stop.is_set():
            return
        self._health.ready = True
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._watch(stop)), group.create_task(self._resync())]
            following = followers(self._cluster, self._cache, self._namespaces)
            tasks += [group.create_task(one.follow()) for one in following]
            if self._selected:
                tasks.append(group.create_task(self._selected.follow(self._look_again)))
            watching_all = group.create_task(self._first_watches([one.began for one in following]))
            at_once = workers + _POLLS_AT_ONCE
            tasks += [watching_all, *(group.create_task(self._work(after=watching_all)) for _ in range(at_once))]
            await stop.wait()
            for task in tasks[1:]:
                task.cancel()

    def enqueue(self, key: RunKey, resource_version: str = "", ended: watching.Ended | None = None) -> None:
        """Queues a run after an event about it or about what it owns; `ended` is the end of one that has ended."""
        if not self._is_ours(key):
            return
        if ended and not self._reconciler.knows(key):
            self._reconciler.note_ended(key, resource_version, ended.state)
            self._queue.add(key, after=self._first_look(ended))
        elif self._reconciler.event(key, resource_version):
            self._queue.add(key, after=_DEBOUNCE_SECONDS)

    def _first_look(self, ended: watching.Ended) -> float:
        """Returns the seconds until the first look at a run that ended before this process began."""
        now, turn = time.time(), time.monotonic()
        lives = math.inf if ended.expires is None else ended.expires - now
        if ended.at is None or now - ended.at < _RECENT_SECONDS or lives <= 0:
            return random.uniform(_DEBOUNCE_SECONDS, _ENDED_SECONDS)  # noqa: S311
        self._next_turn = max(self._next_turn, turn) + _ENDED_APART_SECONDS
        return min(self._next_turn - turn, lives)

    async def _first_watches(self, began: Sequence[asyncio.Event]) -> None:
        """Waits for the watches, but not for one namespace that was deleted, or for a right that is missing."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_WATCH_SECONDS):
                for one in began:
                    await one.wait()

    def _is_ours(self, key: RunKey) -> bool:
        return self._selected is None or key[0] in self._selected

    async def _look_again(self, namespace: str) -> None:
        """Looks at the runs of a namespace that is selected from now on, or forgets those of one that no longer is."""
        for key in self._reconciler.known(namespace):
            self._queue.add(key)
        if self._is_ours((namespace, "")):
            await self._list(namespace, soon=True)

    async def _watch(self, stop: asyncio.Event) -> None:
        if self._selected:
            # What kopf lists before that would be passed over.
            began = asyncio.create_task(self._selected.began.wait())
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({began, stopped}, return_when=asyncio.FIRST_COMPLETED)
            began.cancel()
            stopped.cancel()
        await watching.watch(self.enqueue, self._namespaces, stop, with_kueue=self._with_kueue)
        stop.set()  # kopf takes over the handling of signals, and returns after one

    async def _resync(self) -> None:
        """Looks at all runs from time to time, even without events."""
        scopes: list[str | None] = [*self._namespaces] or [None]
        while True:
            # The watches begin with a list of their own.
            await asyncio.sleep(RESYNC_SECONDS)
            listed = [await self._list(namespace) for namespace in scopes]
            if all(listed) and (self._selected is None or self._selected.began.is_set()):
                metrics.RESYNC_TIME.set_to_current_time()

    async def _list(self, namespace: str | None, *, soon: bool = False) -> bool:
        """Queues the runs of one namespace, but for those that are known to have ended: over half a minute, or `soon`.
        A namespace that was deleted, or its Role, must not keep the others waiting: False where the API server doesn't
        list it."""
        gone = self._reconciler.known(namespace)
        try:
            due = await self._cluster.versions(kinds.RUN, namespace)
        except KubeError as error:
            logger().warning("resync", namespace=namespace or "all", error=str(error))
            return False
        gone -= due.keys()
        within = max(_SELECTED_SECONDS, len(due) / _SELECTED_PER_SECOND) if soon else RESYNC_SECONDS / 2
        for key, version in due.items():
            if self._is_ours(key) and not self._reconciler.is_settled(key, version):
                self._reconciler.event(key, version)
                self._queue.add(key, after=random.uniform(0.01, within))  # noqa: S311
        for key in gone:  # the event of its end was lost
            self._queue.add(key)
        return True

    async def _work(self, after: asyncio.Task[None] | None = None) -> None:
        if after is not None:
            await asyncio.wait({after})
        while True:
            key = await self._queue.take()
            try:
                with structlog.contextvars.bound_contextvars(namespace=key[0], run=key[1]):
                    await self._reconcile(key)
            finally:
                self._queue.finish(key)

    async def _reconcile(self, key: RunKey) -> None:
        """Reconciles a run once; an error only delays the next time.

        Raises:
            LostLeaseError: another replica may act by now.
        """
        if not self._is_ours(key):
            self._reconciler.forget(key)
            return
        wait = self._not_before.pop(key, 0.0) - time.monotonic()
        if wait > 0:  # an event came meanwhile
            self._pause(key, wait)
            return
        try:
            requeue = await self._reconciler.reconcile(key)
        except ConflictError as error:
            metrics.RECONCILE_ERRORS.labels(type(error).__name__).inc()
            logger().debug("changed meanwhile", error=str(error))
            requeue = self._retry_delay(key)
        except LostLeaseError:
            raise  # it ends the process
        except Exception as error:
            # Whatever is wrong with one run must not stop the others.
            metrics.RECONCILE_ERRORS.labels(type(error).__name__).inc()
            expected = isinstance(error, KubeError | TimeoutError)
            logger().error("reconcile failed", error=str(error) or type(error).__name__, exc_info=not expected)
            requeue = self._retry_delay(key)
            if isinstance(error, UnreachableError) and error.retry_after is not None:
                self._pause(key, max(requeue, error.retry_after))
                return
        else:
            self._failures.pop(key, None)
        if requeue is not None:
            self._queue.add(key, after=max(requeue, 0.05))

    def _pause(self, key: RunKey, seconds: float) -> None:
        """Leaves the run alone for `seconds`, whatever happens."""
        self._not_before[key] = time.monotonic() + seconds
        self._queue.add(key, after=seconds)

    def _retry_delay(self, key: RunKey) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return float(min(_FIRST_RETRY_SECONDS * 2 ** min(failures - 1, 10), _MAX_RETRY_SECONDS))

    async def _wait_for_crd(self, stop: asyncio.Event) -> None:
        """Waits until the API server knows GymTrainingRuns, or until `stop`: kopf looks for the kinds once, at its
        start."""
        said = False
        while not stop.is_set():
            try:
                if await self._cluster.knows_runs():
                    return
            except KubeError as error:
                logger().warning("waiting for the API server", error=str(error))
            if not said:
                logger().info("waiting for the CustomResourceDefinition of GymTrainingRun")
                said = True
            with suppress(TimeoutError):
                async with asyncio.timeout(CRD_POLL_SECONDS):
                    await stop.wait()
