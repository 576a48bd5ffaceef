"""The transport `NCCL`: full weights by vLLM's own broadcast between GPUs.

    TRL (main thread)                                             vLLM pods
    pause         group made anew where pods came or went ──────► /init_weight_transfer_engine; /pause
    send_weights  broadcast, packed into large messages ────────► /start_weight_update, /update_weights,
                                                                  /finish_weight_update with the version
    resume        ──────────────────────────────────────────────► /resume; parity check where it is due
    resend        the same, while the trainer waits for rollouts: a pod that came up has no weights

Every call and the collective have a deadline. A pod that may hold half an update loses its label before it is resumed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gymtrain_api.transports import TransportName
from gymtrain_api.wiring import SERVED_MODEL_NAME
from gymtrain_trainer.weights.errors import PodError, WeightsError, WeightSyncError
from gymtrain_trainer.weights.parity.watch import ParityWatch
from gymtrain_trainer.weights.pods.client import UNSYNCED, VllmPod
from gymtrain_trainer.weights.pods.fleet import PullCarrier
from gymtrain_trainer.weights.pods.probe import wait_for_servers
from gymtrain_trainer.weights.settings import SyncSettings
from gymtrain_trainer.weights.stats import SyncEvent
from gymtrain_trainer.weights.store.fingerprint import Fingerprint
from gymtrain_trainer.weights.transports.base import PodTransport
from gymtrain_trainer.weights.transports.nccl import group as nccl_group
from gymtrain_trainer.weights.transports.nccl.broadcast import Broadcast, on_all
from gymtrain_trainer.weights.transports.nccl.packing import Packer, describe

if TYPE_CHECKING:
    from gymtrain_trainer.weights.transports.protocol import NamedTensors, Parameters

logger = logging.getLogger(__name__)


class NCCL(PodTransport):
    """TRL's WeightTransferProtocol."""

    name: TransportName = "NCCL"

    def __init__(
        self,
        settings: SyncSettings,
        parameters: Parameters,
        *,
        dtype: str | None = None,
        reason: str = "",
        resendable: bool = True,
        parity: ParityWatch | None = None,
        observer: Callable[[SyncEvent], None] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            settings: of the run.
            parameters: the model's, as `send_weights` will get them.
            dtype: what floating-point tensors are cast to, the servers' own type; None leaves them.
            reason: why this transport.
            resendable: False where `parameters` are not what `send_weights` gets (a merged adapter).
            parity: check after syncs; None leaves it out.
            observer: called for each event, from any thread.
        """
        super().__init__(settings, PullCarrier(), reason=reason, parity=parity, observer=observer)
        self._parameters = parameters
        self._dtype = dtype
        self._resendable = resendable
        self._group: nccl_group.NcclGroup | None = None
        self._packer: Packer | None = None
        self._sent: Fingerprint | None = None  # of what the pods hold
        self._syncing = threading.Event()
        self._paused_at = 0.0
        self._unchecked = False  # a sync whose parity was not looked at yet
        self._lost: frozenset[VllmPod] = frozenset()
        self._seen: frozenset[VllmPod] = frozenset()  # pods that answered at the watcher's last look
        self._looked_at = -math.inf
        self._turns = 0  # syncs begun: what the watcher asked for before the last one is out of date

    def init_weight_transfer(self) -> None:
        """Finds the pods and makes the group.

        Raises:
            NoServersError: no vLLM pod answers.
            WeightSyncError: they don't join.
        """
        self._ready_group()

    def pause(self) -> None:
        """Renews the group where it has to be, and stops generation."""
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
            on_all(self._start(), group, lambda client: client.pause())
        except WeightSyncError:
            on_all(self._start(), group, lambda client: client.resume_quietly())
            raise

    def send_weights(self, iterator: NamedTensors) -> None:
        """Broadcasts the tensors.

        Raises:
            WeightSyncError: a pod refused or was lost; the group is gone, and no pod of it keeps its label.
        """
        number = self.numbers.next()
        started = time.monotonic()
        sent = self._transfer(iterator, self.settings.version(number))
        self.numbers.current = number
        self._sent, self._unchecked = Fingerprint.of(self._parameters()), True
        now = time.monotonic()
        self.stats.synced(sent, now - min(started, self._paused_at or started), 0.0, 0.0)
        self._observer(SyncEvent("sync", self.settings.version(number), now - started, sent, len(self._pods())))

    def resume(self) -> None:
        """Lets generation go on, then checks parity where it is due.

        Raises:
            WeightParityError: vLLM computes something else than the trainer.
        """
        if self._group is not None:
            on_all(self._start(), self._group, lambda client: client.resume())
        self.stats.last_pause_seconds = time.monotonic() - self._paused_at
        self._let_go()
        if self._unchecked:
            self._unchecked = False
            if self._parity_due():
                self._run_parity(self._pods(), SERVED_MODEL_NAME)

    def destroy(self) -> None:
        """Leaves the group and ends the thread."""
        if self._group is not None:
            self._group.communicator.abort("the run is over")
            self._group = None
        super().destroy()

    @property
    def wants_resend(self) -> bool:
        """Whether a pod answers that doesn't hold the current version."""
        return bool(self._lost) and self.numbers.current > 0 and not self._syncing.is_set()

    def resend(self) -> None:
        """Sends the current version again, to all pods.

        Where the weights can't be read again (a sharded model, a merged adapter), or have changed since the last sync,
        the pods wait for the next one.

        Raises:
            WeightSyncError: they would wait for ever, because no pod is left to collect rollouts with.
        """
        if not self.wants_resend:
            return
        version = self.current_version or ""
        if not self._resendable or self._sent is None or Fingerprint.of(self._parameters()) != self._sent:
            if version in self.held().pods.values():
                return
            raise WeightSyncError(
                f"no vLLM pod holds weights {version} any more, and this process can't send them again: the model is "
                "sharded, or has changed since. A new attempt starts from the last checkpoint"
            )
        lost = sorted(pod.url for pod in self._lost)
        self.pause()
        self._transfer(iter(self._parameters()), version)
        self.resume()
        self.stats.repairs += len(lost)
        self._observer(SyncEvent("repair", version, 0.0, 0, len(lost), f"{', '.join(lost)} had lost the weights"))

    # Parts of a sync, on the main thread.

    def _pods(self) -> list[VllmPod]:
        return self._group.pods if self._group is not None else []

    def _ready_group(self) -> nccl_group.NcclGroup:
        """The group of all pods that answer, made anew where pods came, went or restarted."""
        background = self._start()
        if self._group is not None and self._seen_lately(self._group):
            return self._group
        held = {pod: label for pod, label in background.run(self._versions()).items() if label is not None}
        if self._group is not None:
            same = held.keys() == set(self._group.pods)
            if same and (not self.numbers.current or all(label == self.current_version for label in held.values())):
                return self._group
            self._group.communicator.abort("vLLM pods came, went or restarted")
            self._group = None
        seconds = self.settings.timeout_seconds
        pods = sorted(held) or background.run(wait_for_servers(self.settings, deadline_seconds=seconds))
        started = time.monotonic()
        self._group = nccl_group.connect(self._parts()[0], pods, background, seconds)
        logger.info("NCCL group with %d vLLM pods made in %.1f s", len(pods), time.monotonic() - started)
        return self._group

    def _seen_lately(self, group: nccl_group.NcclGroup) -> bool:
        """Whether the watcher just found the group's pods as the last sync left them. vLLM takes longer to restart."""
        fresh = time.monotonic() - self._looked_at < 2 * self.settings.repair_seconds
        return fresh and not self._lost and self._seen == set(group.pods)

    def _transfer(self, iterator: NamedTensors, label: str) -> int:
        group = self._group
        if group is None:
            raise WeightSyncError("send_weights without pause: there is no NCCL group")
        if self._packer is None:
            self._packer = Packer(describe(self._parameters(), self._dtype), group.communicator.device)
        fleet, _ = self._parts()
        broadcast = Broadcast(group, self._packer, self._start(), self.settings.timeout_seconds)
        try:
            broadcast.send(iterator, label)
        except BaseException as error:  # SIGTERM too: no pod may serve half an update under its old label
            group.communicator.abort("the weight sync failed")
            self._group, self._looked_at = None, -math.inf
            fleet.known.update(dict.fromkeys(group.pods, UNSYNCED))
            broadcast.disown()
            self._let_go()
            if not isinstance(error, (PodError, WeightsError, TimeoutError, RuntimeError)):
                raise
            raise WeightSyncError(f"the broadcast of {label} failed: {error}") from error
        fleet.known.update(dict.fromkeys(group.pods, label))
        self._lost = frozenset()
        return self._packer.total_bytes

    def _hold(self) -> None:
        """Keeps the watcher from resuming pods that this sync pauses."""
        background = self._start()
        background.run(self._parts()[1].acquire())
        self._turns += 1
        self._syncing.set()

    def _let_go(self) -> None:
        if self._syncing.is_set():
            self._syncing.clear()
            self._start().run(self._release())

    async def _release(self) -> None:
        self._parts()[1].release()

    async def _look(self) -> None:
        fleet, turn = self._parts()
        turns = self._turns
        held = await fleet.versions()
        if turn.locked() or turns != self._turns:
            return
        current = self.current_version
        async with turn:
            await fleet.unpause(pod for pod, label in held.items() if label == current)
            self._lost = frozenset(pod for pod, label in held.items() if label not in (None, current))
            self._seen, self._looked_at = frozenset(pod for pod, label in held.items() if label), time.monotonic()
        self.stats.unreachable = sorted(pod.url for pod, label in held.items() if label is None)
