"""kopf, which watches the runs, and their Workloads in Kueue's queues, and does nothing else. Every event means the
same: look at the run.

- watches end and are opened again every few minutes and are given up when they fall silent, since a stalled watch
  looks like a quiet cluster;
- a watch that is refused is asked for again without end: a namespace that was deleted with its Role must not end the
  process, which looks after the others;
- kopf itself ends where an answer breaks off while it asks what the API server serves, and is started again;
- what else the runs own is followed for the cache (`following`);
- nothing is stored in objects, nothing is posted.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import aiohttp
import kopf

from gymtrain_api import kueue, labels
from gymtrain_operator.kinds import CHILD_SELECTOR
from gymtrain_operator.log import logger
from gymtrain_operator.reconcile.lifecycle import ENDS, ended_at
from gymtrain_operator.run_queue import RunKey

_WORKLOADS = (kueue.GROUP, kueue.VERSION, kueue.WORKLOADS)
_TIME_TO_LIVE = "ttlSecondsAfterFinished"


@dataclass(frozen=True, slots=True)
class Ended:
    """What the object of a run says about its end. Times in seconds since the epoch; None where it says nothing that
    can be read.

    Attributes:
        state: one word, as status.state.
        at: when it ended, or when the status said so first.
        expires: when its time to live is over.
    """

    state: str
    at: float | None = None
    expires: float | None = None


type OnEvent = Callable[[RunKey, str, Ended | None], None]
"""Called with the run; its resourceVersion where the event is about the run itself; and the end of one that has
ended."""


async def watch(on_event: OnEvent, namespaces: Sequence[str], stop: asyncio.Event, *, with_kueue: bool = False) -> None:
    """Watches runs, in `namespaces` or in all where there are none, until `stop` or a signal; `with_kueue`: the runs'
    Workloads, too, if Kueue is installed when this begins."""
    for pause in _EndlessBackoff():
        try:
            await _kopf(on_event, namespaces, stop, with_kueue=with_kueue)
        except (aiohttp.ClientError, OSError) as error:
            logger().warning("no watch", kind=labels.KIND, error=f"{type(error).__name__}: {error}", next_in=pause)
        else:
            return
        stop_at_signals(stop)  # what kopf had registered went with it
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()
        if stop.is_set():
            return


def stop_at_signals(stop: asyncio.Event) -> None:
    """Sets `stop` at SIGTERM and SIGINT, until kopf takes over their handling."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _kopf(on_event: OnEvent, namespaces: Sequence[str], stop: asyncio.Event, *, with_kueue: bool) -> None:
    await kopf.operator(
        registry=_registry(on_event, with_kueue=with_kueue),
        settings=settings(),
        standalone=True,
        # kopf asks for the user's name otherwise, and the uid of a container has none.
        identity="gymtrain-operator",  # type: ignore[arg-type]  # a NewType of str that kopf doesn't export
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
    )


def _registry(on_event: OnEvent, *, with_kueue: bool) -> kopf.OperatorRegistry:
    """Registers the handlers. `on.event` handlers leave no trace in the objects: no finalizer, no annotation, no
    progress in the status."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers, retries=3, backoff=2.0)
    async def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        # In a pod its service account, else the kubeconfig, as `Cluster.connect` has it. kopf asks again when
        # a token is refused, as it is after its renewal.
        return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)

    @kopf.on.event(labels.GROUP, labels.VERSION, labels.PLURAL, registry=handlers)
    async def run_changed(*, meta: Any, spec: Any, status: Any, **_: Any) -> None:
        on_event((meta["namespace"], meta["name"]), meta.get("resourceVersion", ""), end_of(meta, spec, status))

    if with_kueue:

        @kopf.on.event(*_WORKLOADS, registry=handlers)
        async def workload_changed(*, meta: Any, **_: Any) -> None:
            on_event((meta["namespace"], meta["labels"][labels.RUN]), "", None)

    return handlers


def end_of(meta: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]) -> Ended | None:
    """Returns the end of a run that ended with the spec that it has now; None while it runs."""
    if status.get("observedGeneration") != meta.get("generation") or meta.get("deletionTimestamp"):
        return None
    conditions = status.get("conditions") or []
    told = [one.get("lastTransitionTime") for one in conditions if one.get("type") in ENDS and _is_true(one)]
    state = str(status.get("state", ""))
    if not told or not state:
        return None
    # As `seconds_to_live` has it, but of objects that nobody checked.
    at, ttl = ended_at((status.get("completionTime"), *told)), _time_to_live(spec, status)
    return Ended(state, at, None if at is None or ttl is None else at + ttl)


def _is_true(condition: Mapping[str, Any]) -> bool:
    return bool(condition.get("status") == "True")


def _time_to_live(spec: Mapping[str, Any], status: Mapping[str, Any]) -> int | None:
    own = spec.get(_TIME_TO_LIVE)
    if own is None:
        defaults = status.get("defaults")
        own = defaults.get(_TIME_TO_LIVE) if isinstance(defaults, Mapping) else None
    return own if isinstance(own, int) and not isinstance(own, bool) else None


class _NoStorage(kopf.DiffBaseStorage):
    """Stores nothing. kopf's last-seen state would double every object in an annotation; a level-based reconcile
    needs none."""

    def fetch(self, *, body: kopf.Body) -> Any:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: Any) -> None:
        return


class _EndlessBackoff:
    """Seconds between the tries of a request. After the last of a finite list kopf ends the whole process."""

    def __iter__(self) -> Iterator[float]:
        return chain((1.0, 2.0, 4.0, 8.0, 16.0), repeat(30.0))


def settings() -> kopf.OperatorSettings:
    """Returns kopf's settings for this operator."""
    tuned = kopf.OperatorSettings()
    tuned.posting.enabled = False
    tuned.scanning.disabled = True  # saves the right to read all CRDs and namespaces
    tuned.peering.standalone = True
    tuned.persistence.diffbase_storage = _NoStorage()
    tuned.watching.server_timeout = 300
    tuned.watching.client_timeout = 330
    tuned.watching.connect_timeout = 15
    tuned.watching.inactivity_timeout = 75
    tuned.watching.reconnect_backoff = 1
    tuned.watching.chunk_size = 50  # without it kopf reads all objects of a kind as one document
    tuned.networking.request_timeout = 30
    tuned.networking.connect_timeout = 15
    tuned.networking.error_backoffs = _EndlessBackoff()
    # A worker stays for each object that had an event until it was idle for this long, and holds the object; the
    # others wait, whole, until there is room for them. The handlers take no time, so workers can leave soon.
    tuned.queueing.worker_limit = 100
    tuned.queueing.idle_timeout = 0.01
    tuned.watching.label_selectors[_WORKLOADS] = CHILD_SELECTOR
    return tuned
