"""The transport `NCCL`: full weights by vLLM's own broadcast between GPUs.

    main thread                                             vLLM pods
    pause   a group is made where pods came or went ──────► /init_weight_transfer_engine; /pause
    send    broadcast, packed into large messages ────────► /start_weight_update, /update_weights,
                                                            /finish_weight_update with the version
    resume  ──────────────────────────────────────────────► /resume
    resend  the same, while the trainer waits for rollouts: a pod that came up has no weights

Where rollouts may be of earlier versions, and the GPU has room for a copy of the weights, `send` only makes that copy,
and all of the above happens in a thread while the next step is trained.

Every call and the collective have a deadline. A pod that may hold half an update loses its label before it is resumed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gymtrain_api.transports import TransportName
from gymtrain_trainer.internals import writes_of
from gymtrain_trainer.weights.errors import PodError, WeightsError, WeightSyncError
from gymtrain_trainer.weights.pods.client import UNSYNCED, VllmPod
from gymtrain_trainer.weights.pods.probe import wait_for_servers
from gymtrain_trainer.weights.transports.nccl import group as nccl_group
from gymtrain_trainer.weights.transports.nccl.broadcast import Broadcast
from gymtrain_trainer.weights.transports.nccl.packing import MESSAGE_BYTES, Packer, SendMessage, describe
from gymtrain_trainer.weights.transports.transport import Delivered, Transport

if TYPE_CHECKING:
    import torch

    from gymtrain_trainer.weights.transports.transport import NamedTensors, Parameters

logger = logging.getLogger(__name__)

_MARGIN = 0.1  # of the GPU's memory


@dataclass(frozen=True)
class Fingerprint:
    """Whether a model's weights are still those that were sent: how often each tensor was written to.

    torch counts writes in place, which is how optimizers change weights.
    """

    writes: tuple[int, ...]

    @classmethod
    def of(cls, tensors: NamedTensors) -> Fingerprint | None:
        """Now; None for a model of which this process holds only its share."""
        from torch.distributed.tensor import DTensor

        writes = []
        for _, tensor in tensors:
            if isinstance(tensor, DTensor):
                return None
            writes.append(writes_of(tensor))
        return cls(tuple(writes))


class Copy:
    """The weights of one sync, packed into memory of their own."""

    def __init__(self, packer: Packer, tensors: NamedTensors, room: list[torch.Tensor]) -> None:
        """Copies in the order of the device's stream: what changes the tensors later comes after it."""
        import torch

        packer.copy(tensors, room)
        self._messages = room
        self._done = torch.cuda.current_stream().record_event() if room[0].is_cuda else None

    @contextmanager
    def stream(self) -> Iterator[None]:
        """What is queued on the GPU within doesn't wait for the training that goes on."""
        import torch

        if self._done is None:
            yield
            return
        with torch.cuda.device(self._messages[0].device), torch.cuda.stream(torch.cuda.Stream()):
            yield

    def write(self, send: SendMessage) -> None:
        """Hands over all messages."""
        if self._done is not None:
            self._done.synchronize()
        for message in self._messages:
            send(message)


def gpu_has_room(size: int) -> bool:
    """Whether this process' GPU has room for so many bytes, with a margin for steps longer than those so far."""
    import torch

    free, total = torch.cuda.mem_get_info()  # what training has not used so far
    return bool(size <= free / 2 and free - size >= _MARGIN * total)


def in_thread(call: Callable[[], None]) -> Future[None]:
    """Runs it in a thread that doesn't keep the process alive."""
    future: Future[None] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="weights-copy", daemon=True).start()
    return future


class NCCL(Transport):
    """Pods take part in a broadcast, of the weights themselves or of a copy."""

    name: TransportName = "NCCL"
    pauses = True
    mends = False

    def __init__(
        self,
        parameters: Parameters,
        *,
        dtype: str | None = None,
        resendable: bool = True,
        max_staleness: int = 0,
        has_room: Callable[[int], bool] = gpu_has_room,
        message_bytes: int = MESSAGE_BYTES,
    ) -> None:
        """
        Args:
            parameters: the model's, as `send` will get them.
            dtype: what floating-point tensors are cast to, the servers' own type; None leaves them.
            resendable: False where `parameters` are not what `send` gets (a merged adapter).
            max_staleness: versions that rollouts may be behind; with 0 every sync is waited for.
            has_room: whether the GPU has room for so many bytes more; asked once, after the first optimizer step.
            message_bytes: above which a message is closed. The pods need two of them free on each GPU.
        """
        self.overlaps = max_staleness > 0
        self._has_room = has_room
        self._message_bytes = message_bytes
        self._copies: bool | None = None  # whether `send` makes a copy; None: not decided yet
        self._copying = False  # in this sync
        self._parameters = parameters
        self._dtype = dtype
        self._resendable = resendable
        self._group: nccl_group.NcclGroup | None = None
        self._packer: Packer | None = None
        self._current: str | None = None  # label of the version that was sent last
        self._sent: Fingerprint | None = None  # of what the pods hold
        self._syncing = threading.Event()
        self._paused_at = 0.0
        self._paused_seconds = 0.0
        self._lost: frozenset[VllmPod] = frozenset()
        self._seen: frozenset[VllmPod] = frozenset()  # pods that answered at the watcher's last look
        self._looked_at = -math.inf
        self._begun = 0  # syncs: what the watcher asked for before the last one is out of date

    def prepare(self) -> None:
        """Finds the pods and makes the group.

        Raises:
            NoServersError: no vLLM pod answers.
            WeightSyncError: they don't join.
        """
        self._ready_group()

    def pause(self) -> None:
        """Stops generation, unless a copy of the weights is made first."""
        self._copying = self._copies_next()
        if not self._copying:
            self._pause()

    def _copies_next(self) -> bool:
        """Whether the next sync leaves by a copy."""
        if self._copies is None and self._packer is not None:
            size = self._packer.total_bytes
            self._copies = self.overlaps and self._has_room(size)
            how = "by a copy, while training goes on" if self._copies else "while training waits"
            logger.info("weights (%.1f GiB) leave %s", size / 2**30, how)
        return bool(self._copies)

    def _pause(self) -> None:
        """Makes another group where it has to be, and stops generation."""
        self._hold()
        self._paused_at = time.monotonic()
        try:
            try:
                self._pause_group()
            except WeightSyncError:  # a pod went away this moment: without it, then
                self._pause_group()
        except BaseException:
            self._let_go()
            raise

    def _pause_group(self) -> None:
        group = self._ready_group()
        try:
            group.on_all(lambda client: client.pause())
        except WeightSyncError:
            group.on_all(lambda client: client.resume_quietly())
            raise

    def send(self, number: int, tensors: NamedTensors, delivered: Callable[[Delivered], None]) -> Future[None] | None:
        """Broadcasts the tensors; or copies them, and broadcasts the copy after it has returned.

        Raises:
            WeightSyncError: a pod refused or was lost; the group is gone, and no pod of it keeps its label.
        """
        label, packer = self.fleet.settings.version(number), self._made_packer()
        room = self._room(packer) if self._copying else None
        if room is None:
            self._deliver(label, self._paused_at, partial(packer.send, tensors), delivered)
            self._sent = Fingerprint.of(self._parameters())
            return None
        started = time.monotonic()
        copy = Copy(packer, tensors, room)
        self._sent = Fingerprint.of(self._parameters())
        self._syncing.set()  # from now on, and not when the thread gets there: nobody is to send anything again

        def bring() -> None:
            with copy.stream():
                self._pause()
                self._deliver(label, started, copy.write, delivered)
                self._resume()

        return in_thread(bring)

    def _room(self, packer: Packer) -> list[torch.Tensor] | None:
        """Memory for a copy. Where there is none, the pods are paused, as for every later sync."""
        import torch

        try:
            return packer.room()
        except torch.OutOfMemoryError:
            logger.warning("the GPU has no room for a copy of the weights any more: training waits for each sync")
            self._copies = self._copying = False
            self._pause()
            return None

    def _deliver(
        self,
        label: str,
        started: float,
        write: Callable[[SendMessage], None],
        delivered: Callable[[Delivered], None],
    ) -> None:
        """One version to paused pods."""
        size = self._broadcast(write, label)
        self._current = label
        pods = self._group.pods if self._group is not None else []
        delivered(Delivered(pods=pods, bytes=size, seconds=time.monotonic() - started))

    def resume(self) -> None:
        """Lets generation continue, where `pause` stopped it."""
        if not self._copying:
            self._resume()

    def _resume(self) -> None:
        if self._group is not None:
            self._group.on_all(lambda client: client.resume())
        self._paused_seconds = time.monotonic() - self._paused_at
        self._let_go()

    @property
    def paused_seconds(self) -> float:
        """From `pause` to the end of `resume`."""
        return self._paused_seconds

    @property
    def wants_resend(self) -> bool:
        """Whether a pod answers that doesn't hold the current version."""
        return bool(self._lost) and self._current is not None and not self._syncing.is_set()

    def resend(self) -> list[VllmPod]:
        """Sends the current version again, to all pods.

        Where the weights can't be read again (a sharded model, a merged adapter), or have changed since the last sync,
        the pods wait for the next one.

        Raises:
            WeightSyncError: they would wait forever, because no pod is left to collect rollouts with.
        """
        version = self._current
        if not self.wants_resend or version is None:
            return []
        if not self._resendable or self._sent is None or Fingerprint.of(self._parameters()) != self._sent:
            if version in self.fleet.known.values():
                return []
            raise WeightSyncError(
                f"no vLLM pod holds weights {version} any more, and this process can't send them again: the model is "
                "sharded, or has changed since. A new attempt starts from the last checkpoint"
            )
        lost = sorted(self._lost)
        self._pause()
        self._broadcast(partial(self._made_packer().send, iter(self._parameters())), version)
        self._resume()
        return lost

    def close(self) -> None:
        """Leaves the group."""
        if self._group is not None:
            self._group.communicator.abort("the run is over")
            self._group = None

    # Parts of a sync: on the main thread, or in that of a copy, never on both at once.

    def _ready_group(self) -> nccl_group.NcclGroup:
        """The group of all pods that answer; another one where pods came, went or restarted."""
        if self._group is not None and self._seen_lately(self._group):
            return self._group
        held = {pod: label for pod, label in self.thread.run(self.fleet.versions()).items() if label is not None}
        if self._group is not None:
            same = held.keys() == set(self._group.pods)
            if same and (self._current is None or all(label == self._current for label in held.values())):
                return self._group
            self._group.communicator.abort("vLLM pods came, went or restarted")
            self._group = None
        settings = self.fleet.settings
        seconds = settings.timeout_seconds
        pods = sorted(held) or self.thread.run(wait_for_servers(settings, deadline_seconds=seconds))
        started = time.monotonic()
        self._group = nccl_group.connect(self.fleet, pods, self.thread, seconds, self._message_bytes)
        logger.info("NCCL group with %d vLLM pods made in %.1f s", len(pods), time.monotonic() - started)
        return self._group

    def _seen_lately(self, group: nccl_group.NcclGroup) -> bool:
        """Whether the watcher just found the group's pods as the last sync left them. vLLM takes longer to restart."""
        fresh = time.monotonic() - self._looked_at < 2 * self.fleet.settings.repair_seconds
        return fresh and not self._lost and self._seen == set(group.pods)

    def _made_packer(self) -> Packer:
        if self._packer is None:
            if self._group is None:
                raise WeightSyncError("send without pause: there is no NCCL group")
            described = describe(self._parameters(), self._dtype)
            self._packer = Packer(described, self._group.communicator.device, self._message_bytes)
        return self._packer

    def _broadcast(self, write: Callable[[SendMessage], None], label: str) -> int:
        group, packer = self._group, self._made_packer()
        if group is None:
            raise WeightSyncError("send without pause: there is no NCCL group")
        broadcast = Broadcast(group, packer, self.fleet.settings.timeout_seconds)
        try:
            broadcast.send(write, label)
        except BaseException as error:  # SIGTERM too: no pod may serve half an update under its old label
            group.communicator.abort("the weight sync failed")
            self._group, self._looked_at = None, -math.inf
            self.fleet.known.update(dict.fromkeys(group.pods, UNSYNCED))
            broadcast.disown()
            self._let_go()
            if not isinstance(error, (PodError, WeightsError, TimeoutError, RuntimeError)):
                raise
            raise WeightSyncError(f"the broadcast of {label} failed: {error}") from error
        self.fleet.known.update(dict.fromkeys(group.pods, label))
        self._lost = frozenset()
        return packer.total_bytes

    def _hold(self) -> None:
        """Keeps the watcher from resuming pods that this sync pauses."""
        self.thread.run(self.fleet.lock.acquire())
        self._begun += 1
        self._syncing.set()

    def _let_go(self) -> None:
        if self._syncing.is_set():
            self._syncing.clear()
            self.thread.run(self._release())

    # In the thread of the pods.

    async def _release(self) -> None:
        self.fleet.lock.release()

    async def look(self) -> dict[VllmPod, str | None] | None:
        """Resumes pods that were left paused, and notes which ones lost the weights."""
        fleet, begun = self.fleet, self._begun
        held = await fleet.versions()
        if fleet.lock.locked() or begun != self._begun:
            return None
        current = self._current
        async with fleet.lock:
            await fleet.unpause(pod for pod, label in held.items() if label == current)
            self._lost = frozenset(pod for pod, label in held.items() if label not in (None, current))
            self._seen, self._looked_at = frozenset(pod for pod, label in held.items() if label), time.monotonic()
        return held
