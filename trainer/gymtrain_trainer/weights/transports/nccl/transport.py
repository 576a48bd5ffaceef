"""The transport `NCCL`: full weights by vLLM's own broadcast between GPUs.

    main thread                                             vLLM pods
    pause   a group is made where pods came or went ──────► /init_weight_transfer_engine; /pause
    send    broadcast, packed into large messages ────────► /start_weight_update, /update_weights,
                                                            /finish_weight_update with the version
    resume  ──────────────────────────────────────────────► /resume
    resend  the same, while the trainer waits for rollouts: a pod that came up has no weights

Every call and the collective have a deadline. A pod that may hold half an update loses its label before it is resumed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gymtrain_api.transports import TransportName
from gymtrain_trainer.internals import writes_of
from gymtrain_trainer.weights.errors import PodError, WeightsError, WeightSyncError
from gymtrain_trainer.weights.pods.client import UNSYNCED, VllmPod
from gymtrain_trainer.weights.pods.probe import wait_for_servers
from gymtrain_trainer.weights.transports.nccl import group as nccl_group
from gymtrain_trainer.weights.transports.nccl.broadcast import Broadcast
from gymtrain_trainer.weights.transports.nccl.packing import Packer, describe
from gymtrain_trainer.weights.transports.transport import Delivered, Transport

if TYPE_CHECKING:
    from gymtrain_trainer.weights.transports.transport import NamedTensors, Parameters

logger = logging.getLogger(__name__)


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


class NCCL(Transport):
    """Pods take part in a broadcast, which only the main thread can send."""

    name: TransportName = "NCCL"
    pauses = True
    mends = False

    def __init__(self, parameters: Parameters, *, dtype: str | None = None, resendable: bool = True) -> None:
        """
        Args:
            parameters: the model's, as `send` will get them.
            dtype: what floating-point tensors are cast to, the servers' own type; None leaves them.
            resendable: False where `parameters` are not what `send` gets (a merged adapter).
        """
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

    def send(self, number: int, tensors: NamedTensors, delivered: Callable[[Delivered], None]) -> None:
        """Broadcasts the tensors.

        Raises:
            WeightSyncError: a pod refused or was lost; the group is gone, and no pod of it keeps its label.
        """
        started = time.monotonic()
        label = self.fleet.settings.version(number)
        size = self._broadcast(tensors, label)
        self._current = label
        self._sent = Fingerprint.of(self._parameters())
        seconds = time.monotonic() - min(started, self._paused_at or started)
        delivered(Delivered(pods=self._group.pods if self._group is not None else [], bytes=size, seconds=seconds))

    def resume(self) -> None:
        """Lets generation continue."""
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
        self.pause()
        self._broadcast(iter(self._parameters()), version)
        self.resume()
        return lost

    def close(self) -> None:
        """Leaves the group."""
        if self._group is not None:
            self._group.communicator.abort("the run is over")
            self._group = None

    # Parts of a sync, on the main thread.

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
        self._group = nccl_group.connect(self.fleet, pods, self.thread, seconds)
        logger.info("NCCL group with %d vLLM pods made in %.1f s", len(pods), time.monotonic() - started)
        return self._group

    def _seen_lately(self, group: nccl_group.NcclGroup) -> bool:
        """Whether the watcher just found the group's pods as the last sync left them. vLLM takes longer to restart."""
        fresh = time.monotonic() - self._looked_at < 2 * self.fleet.settings.repair_seconds
        return fresh and not self._lost and self._seen == set(group.pods)

    def _broadcast(self, tensors: NamedTensors, label: str) -> int:
        group = self._group
        if group is None:
            raise WeightSyncError("send without pause: there is no NCCL group")
        if self._packer is None:
            self._packer = Packer(describe(self._parameters(), self._dtype), group.communicator.device)
        broadcast = Broadcast(group, self._packer, self.fleet.settings.timeout_seconds)
        try:
            broadcast.send(tensors, label)
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
        return self._packer.total_bytes

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
