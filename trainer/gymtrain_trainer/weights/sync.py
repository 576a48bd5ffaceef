"""The manager of weight sync: all that TRL, the rollouts and the watchdog know of it.

    TRL ──► WeightSync ──────► a transport ───► Fleet ────► PodClient ──► vLLM
            numbers, repairs,  how weights      all pods,   one pod
            parity, account    leave the        retries
                               trainer

One sync, on the main thread of rank 0:

    pause         the transport stops generation, where it needs that before weights are gathered
    send_weights  wait for the sync before ─► note a new number ─► the transport sends
                  ─► wait for it, unless rollouts may be of earlier versions ─► the pods sample, where parity is due
    resume        the transport lets generation go on ─► the pods sample, where they could not before
    to_compare    what they sampled; all ranks compute its log-probabilities, which a sharded model needs
    compare       the parity check

The watcher, every 2 s in a thread of its own: what does each pod hold? Pods with other weights than the current version
get it again, and those that were left paused are resumed. What only the main thread can send waits for `resend`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import aiohttp

from gymtrain_api.wiring import WeightsHeld
from gymtrain_trainer.activity import Activity, Doing
from gymtrain_trainer.errors import InterruptedBySignal
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.weights.errors import TransportRefusedError, WeightSyncError
from gymtrain_trainer.weights.event_loop_thread import EventLoopThread
from gymtrain_trainer.weights.parity.check import Completion
from gymtrain_trainer.weights.parity.watch import ParityWatch
from gymtrain_trainer.weights.pods.client import VllmPod, find_pods
from gymtrain_trainer.weights.pods.fleet import Fleet
from gymtrain_trainer.weights.pods.run_token import control_session
from gymtrain_trainer.weights.store.weight_store import WeightStore
from gymtrain_trainer.weights.sync_settings import SyncSettings
from gymtrain_trainer.weights.transports.transport import ChosenTransport, Delivered, Transport
from gymtrain_trainer.weights.version_numbers import SyncNumberFile, SyncNumbers

if TYPE_CHECKING:
    from gymtrain_trainer.weights.transports.transport import NamedTensors

logger = logging.getLogger(__name__)

_BACKOFF_LIMIT_SECONDS = 30.0
_LAST_SECONDS = 10.0

type StreamWatch = Callable[[int, NamedTensors, str | None], NamedTensors]


@dataclass(frozen=True)
class SyncEvent:
    """Something that an observer may log or count."""

    kind: Literal["sync", "repair", "pod_failed"]
    version: str
    seconds: float = 0.0
    bytes: int = 0
    pods: int = 0
    message: str = ""


@dataclass
class SyncStats:
    """Counters since the start, and figures of the last sync. Written by one thread at a time, read by any."""

    syncs: int = 0
    bytes_staged: int = 0
    last_bytes: int = 0  # what a pod fetches that holds the version before
    last_seconds: float = 0.0  # of the whole sync
    last_stage_seconds: float = 0.0  # writing files; vLLM keeps generating meanwhile
    last_fetch_seconds: float = 0.0  # until the last pod had what was written; it keeps generating meanwhile too
    last_pause_seconds: float = 0.0  # the longest pause of a pod
    last_parity: float | None = None  # mean |difference| of log-probabilities, when last checked
    retries: int = 0
    repairs: int = 0
    unreachable: list[str] = field(default_factory=list)  # pods that didn't answer at the last look

    def synced(self, delivered: Delivered) -> None:
        """Counts one sync."""
        self.syncs += 1
        self.bytes_staged += delivered.bytes
        self.last_bytes = delivered.bytes
        self.last_seconds, self.last_stage_seconds = delivered.seconds, delivered.staged_seconds
        self.last_fetch_seconds, self.last_pause_seconds = delivered.fetched_seconds, delivered.paused_seconds
        self.retries += delivered.retries
        if delivered.unreachable is not None:
            self.unreachable = sorted(pod.url for pod in delivered.unreachable)


class WeightSync:
    """TRL's WeightTransferProtocol: from the trainer's tensors to every vLLM pod. Rank 0 only.

    TRL calls from the main thread: `init_weight_transfer` once, then `pause`, `send_weights`, `resume` for each sync,
    `destroy` at the end. What drives TRL calls `to_compare` and `compare` after each sync.

    Once `send_weights` has returned, every vLLM pod that answers holds the new version, and so does every one that gets
    traffic. Where rollouts may be of earlier versions it may return sooner, when the tensors may change again: then the
    next sync waits for this one, and raises what it failed with.

    SIGTERM ends its waits: suspending a run takes vLLM away in the middle of a sync. What is left of a sync is left out
    then, without an error: the step is over, its checkpoint is still to be written, and other ranks are in the same
    collectives.
    """

    def __init__(
        self,
        settings: SyncSettings,
        choose: Callable[[], ChosenTransport],
        *,
        numbers: SyncNumbers | None = None,
        number_file: SyncNumberFile | None = None,
        store: WeightStore | None = None,
        parity: ParityWatch | None = None,
        board: ProgressBoard | None = None,
        stop: StopSignal | None = None,
        activity: Activity | None = None,
        observer: Callable[[SyncEvent], None] | None = None,
        watch: StreamWatch | None = None,
        find: Callable[[str, int], Awaitable[list[VllmPod]]] = find_pods,
    ) -> None:
        """Asks no server yet: TRL needs it when its trainer is made, before the vLLM servers are up.

        Args:
            settings: of the run.
            choose: the transport, when the servers are up; called once.
            numbers: of this process' weight versions.
            number_file: where the attempt's numbers are noted before any pod hears of them.
            store: answers `GET /weights/held` by this object from now on, and is emptied at the end.
            parity: check after the first sync and some of the later ones; None leaves it out.
            board: where the transport, the reason for it and the current version go.
            stop: ends waits.
            activity: of the main thread.
            observer: called for each event, from any thread.
            watch: sees the stream of each of TRL's model versions on its way, and is told what it will be cast to.
            find: the pods behind a name and port.
        """
        self.settings = settings
        self.numbers = numbers or SyncNumbers(settings.run, settings.attempt)
        self.stats = SyncStats()
        self._choose = choose
        self._number_file = number_file or SyncNumberFile(None, settings.attempt)
        self._store = store
        self._parity = parity
        self._board = board or ProgressBoard()
        self._stop = stop or StopSignal()
        self._activity = activity or Activity()
        self._observer = observer or (lambda _: None)
        self._stream_watch = watch
        self._find = find
        self._choosing, self._lifecycle = threading.Lock(), threading.Lock()
        self._chosen: ChosenTransport | None = None
        self._thread: EventLoopThread | None = None
        self._session: aiohttp.ClientSession | None = None
        self._fleet: Fleet | None = None
        self._under_way: tuple[int, Future[Any]] | None = None  # a sync whose outcome was not looked at yet
        self._delivered = Delivered()  # the last one
        self._unchecked = 0  # number of a version that pods are to sample with in `resume`
        if store is not None:
            store.held = self.held

    @classmethod
    def over(
        cls,
        settings: SyncSettings,
        transport: Transport,
        *,
        store: WeightStore | None = None,
        parity: ParityWatch | None = None,
        observer: Callable[[SyncEvent], None] | None = None,
        watch: StreamWatch | None = None,
    ) -> WeightSync:
        """Weight sync over a transport that needs no choice; the rest as for the class."""
        chosen = ChosenTransport(transport)
        return cls(settings, lambda: chosen, store=store, parity=parity, observer=observer, watch=watch)

    # What TRL calls.

    def init_weight_transfer(self) -> None:
        """Chooses the transport by what the servers offer, says so on the board, and makes ready for the first sync.

        Raises:
            NoServersError: none answers in time.
            TransportRefusedError: none of the transports works with them.
        """
        try:
            with self._waiting():
                self._started().prepare()
        except TransportRefusedError as error:
            self._board.update(transport_reason=str(error))
            raise
        assert self._chosen is not None
        self._board.update(transport=self.name, transport_reason=self._chosen.reason)

    def pause(self) -> None:
        """Before the weights are gathered.

        Raises:
            WeightsError: what the last sync failed with after `send_weights` returned.
        """
        with contextlib.suppress(InterruptedBySignal), self._waiting():
            self._finish()
            self._started().pause()

    def send_weights(self, iterator: NamedTensors) -> None:
        """Sends one version. The stream is read to its end in any case: with a sharded model each tensor is a
        collective.

        Raises:
            StagingError: the disk is full.
            NoServersError: no pod answered before the deadline, in this sync or the last one.
            WeightSyncError: a pod refused, in this sync or the last one.
        """
        self._number_file.reserve(self.numbers.given)
        stream = iterator
        if self._stream_watch is not None:
            stream = self._stream_watch(self.numbers.model_versions + 1, iterator, self.sent_dtype)
        try:
            with self._waiting():
                label = self._sync(stream)
        except InterruptedBySignal:
            for _ in iterator:
                pass
            return
        self.numbers.sent(label)
        self._board.update(weight_version=label)

    def resume(self) -> None:
        """After the weights.

        Raises:
            WeightSyncError: a pod refuses the parity check, or none has answered several times in a row.
        """
        with contextlib.suppress(InterruptedBySignal), self._waiting():
            transport = self._started()
            transport.resume()
            self._note_pause(transport)
            number, self._unchecked = self._unchecked, 0
            if number:
                self._ask_for_parity(number)

    def to_compare(self) -> list[Completion]:
        """What the pods sampled for the parity check after this sync; none where it isn't due."""
        return self._parity.to_compare if self._parity is not None else []

    def compare(self, log_probs: Sequence[Sequence[float]]) -> None:
        """The parity check: with the log-probabilities that the trainer computes of `to_compare`.

        Raises:
            WeightParityError: vLLM computes something else than the trainer.
        """
        assert self._parity is not None
        self.stats.last_parity = self._parity.compare(log_probs)

    def destroy(self) -> None:
        """Releases threads, connections and disk. The pods keep what they have."""
        if self._under_way is not None and not self._stop.requested:  # the last version is to arrive
            concurrent.futures.wait([self._under_way[1]], _LAST_SECONDS)
        with self._lifecycle:
            if self._thread is not None:
                self._thread.cancel_all()  # a sync too: it resumes its pods while there is a session
                self._thread.run(self._close())
                self._thread.stop()
                self._thread = None
        self._under_way = None
        if self._chosen is not None:
            self._chosen.transport.close()
        if self._store is not None:
            self._store.clear()

    # What others ask.

    def settle(self) -> Transport:
        """The transport; asks the servers the first time.

        Raises:
            NoServersError: none answers in time.
            TransportRefusedError: none of the transports works with them.
        """
        with self._choosing:
            if self._chosen is None:
                chosen = self._choose()
                if self._parity is not None and chosen.dtype is not None:
                    self._parity.dtype = chosen.dtype
                self._chosen = chosen
            return self._chosen.transport

    @property
    def name(self) -> str:
        """Of the transport; empty before it is settled."""
        return self._chosen.transport.name if self._chosen is not None else ""

    @property
    def sent_dtype(self) -> str | None:
        """What floating-point tensors are cast to: the type that vLLM holds; None before the transport is settled."""
        return self._chosen.dtype if self._chosen is not None else None

    @property
    def current_version(self) -> str | None:
        """Label of the version that was sent last; None before the first sync."""
        number = self._under_way[0] if self._under_way is not None else self.numbers.current
        return self.settings.version(number) if number else None

    async def pod_versions(self) -> dict[str, str | None]:
        """What each pod holds now, by URL; None if it doesn't answer. From any event loop; no pods before the
        transport is settled."""
        if self._chosen is None:
            return {}
        self._started()
        fleet, thread = self._pods()
        held = await asyncio.wrap_future(thread.submit(fleet.versions()))
        return {pod.url: label for pod, label in held.items()}

    def held(self) -> WeightsHeld:
        """The version that pods are to hold, and what each holds by the last look. From any thread, at once."""
        known = dict(self._fleet.known) if self._fleet is not None else {}
        number = self.numbers.current
        version = self.settings.version(number) if number else None
        return WeightsHeld(version=version, pods={pod.url: label for pod, label in known.items()})

    @property
    def wants_resend(self) -> bool:
        """Whether a pod waits for weights that only the main thread can send, or a sync failed after `send_weights`
        returned: call `resend` while the main thread is idle."""
        return self._chosen is not None and (self._has_failed() or self._chosen.transport.wants_resend)

    def resend(self) -> None:
        """Sends the current version to pods that lost it. Main thread of rank 0, between syncs.

        Raises:
            WeightsError: what a sync failed with after `send_weights` returned, or no pod is left with the weights.
            InterruptedBySignal: SIGTERM.
        """
        with self._waiting():
            if self._has_failed():
                self._finish()
            transport = self._started()
            if not transport.wants_resend:
                return
            lost = transport.resend()
            self._note_pause(transport)
            if lost:
                self.stats.repairs += len(lost)
                message = f"{', '.join(pod.url for pod in lost)} had lost the weights"
                self._observer(SyncEvent("repair", self.current_version or "", pods=len(lost), message=message))

    # A sync, on the main thread.

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        with self._activity.doing(Doing.SYNC), self._stop.waiting():
            yield

    def _sync(self, tensors: NamedTensors) -> str:
        """Sends one version; returns its label."""
        if self.to_compare():
            raise WeightSyncError("what vLLM sampled after the last sync was not compared: the trainer left it out")
        self._finish()
        transport, number = self._started(), self.numbers.next()
        under_way = transport.send(number, tensors, partial(self._account, number))
        if under_way is not None:
            self._under_way = number, under_way
        check = transport.compares and self._parity is not None and self._parity.due()
        if check or not self.numbers.current or not transport.overlaps:
            self._finish()
        if check and transport.pauses:
            self._unchecked = number
        elif check:
            self._ask_for_parity(number)
        return self.settings.version(number)

    def _account(self, number: int, delivered: Delivered) -> None:
        """The pods hold version `number`. In the fleet's lock: a repair must not push the version before."""
        self.stats.synced(delivered)
        self._delivered = delivered
        self.numbers.arrived(number)
        version, pods = self.settings.version(number), len(delivered.pods)
        self._observer(SyncEvent("sync", version, delivered.seconds, delivered.bytes, pods))

    def _finish(self) -> None:
        """Waits for the sync that is under way, and raises what it failed with."""
        if self._under_way is None:
            return
        number, sync = self._under_way
        try:
            sync.result()
        except BaseException:
            sync.cancel()
            self.settle().withdraw(number)
            raise
        finally:
            self._under_way = None

    def _has_failed(self) -> bool:
        """Whether the sync that is under way failed."""
        sync = self._under_way[1] if self._under_way is not None else None
        return sync is not None and sync.done() and not sync.cancelled() and sync.exception() is not None

    def _ask_for_parity(self, number: int) -> None:
        """Lets the pods sample with the version that was delivered last."""
        assert self._parity is not None
        transport, (fleet, thread) = self.settle(), self._pods()
        self._parity.ask(
            {pod.url: fleet.client(pod) for pod in self._delivered.pods},
            transport.asked_as(number),
            thread.run,
            self.settings.timeout_seconds,
        )

    def _note_pause(self, transport: Transport) -> None:
        if transport.pauses:
            self.stats.last_pause_seconds = transport.paused_seconds

    # The thread of the pods.

    def _started(self) -> Transport:
        """The transport, with the thread that it talks to the pods in."""
        transport = self.settle()
        with self._lifecycle:
            if self._thread is None:
                self._thread = EventLoopThread("weights")
                self._fleet = self._thread.run(self._open(transport))
                transport.attach(self._fleet, self._thread)
                self._thread.submit(self._watch(self._fleet, transport))
        return transport

    def _pods(self) -> tuple[Fleet, EventLoopThread]:
        assert self._fleet is not None
        assert self._thread is not None
        return self._fleet, self._thread

    async def _open(self, transport: Transport) -> Fleet:
        self._session = control_session()
        return Fleet(self.settings, self._session, transport, self._find)

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _watch(self, fleet: Fleet, transport: Transport) -> None:
        """Checks the pods forever. Pods that can't be repaired get no traffic, so it can wait longer each time."""
        pause = self.settings.repair_seconds
        while True:
            await asyncio.sleep(pause)
            try:
                if transport.mends:
                    await self._repair(fleet, transport)
                else:
                    self._note_unreachable(await transport.look())
                pause = self.settings.repair_seconds
            except WeightSyncError:
                pause = min(2 * pause, _BACKOFF_LIMIT_SECONDS)
            except Exception:
                logger.exception("the watcher of vLLM's weights failed; it continues")

    async def _repair(self, fleet: Fleet, transport: Transport) -> None:
        """Brings pods with other weights to the current version.

        Raises:
            WeightSyncError: none of them took it.
        """
        async with fleet.lock:
            if not self.numbers.current:  # asked within the lock: a sync may just have ended
                await fleet.versions()
                return
            version = transport.published(self.numbers.current)
            started = time.monotonic()
            held, errors = await fleet.repair(version, self.settings.timeout_seconds)
        self._note_unreachable(held)
        mended = [pod for pod, label in held.items() if label not in (None, version.label) and pod not in errors]
        for pod in mended:
            self.stats.repairs += 1
            message = f"{pod.url} held {held[pod]!r}"
            logger.warning("%s: brought to %s", message, version.label)
            self._observer(SyncEvent("repair", version.label, time.monotonic() - started, 0, 1, message))
        for pod, error in errors.items():
            logger.warning("cannot bring %s to %s: %s", pod.url, version.label, error)
            self._observer(SyncEvent("pod_failed", version.label, time.monotonic() - started, 0, 1, error))
        if errors and not mended:
            raise WeightSyncError("; ".join(errors.values()))

    def _note_unreachable(self, held: dict[VllmPod, str | None] | None) -> None:
        if held is not None:
            self.stats.unreachable = sorted(pod.url for pod, label in held.items() if label is None)
