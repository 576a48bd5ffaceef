"""The NCCL group of this process (rank 0) and every worker of every vLLM pod.

Ranks are given out pod by pod: with two pods of two workers each, the first pod has 1 and 2, the second 3 and 4.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymtrain_api.transports import release_at_least
from gymtrain_trainer.weights.errors import PodError, PodRefusedError, WeightSyncError
from gymtrain_trainer.weights.event_loop_thread import Background
from gymtrain_trainer.weights.pods.client import PodClient, VllmPod
from gymtrain_trainer.weights.pods.fleet import Fleet
from gymtrain_trainer.weights.pods.probe import ServerReport, probe_servers
from gymtrain_trainer.weights.transports.nccl import libnccl, rendezvous
from gymtrain_trainer.weights.transports.nccl.packing import BUFFERS, MESSAGE_BYTES, TensorInfo

_POLL_SECONDS = 0.02
# What both sides must agree on: with the handshake from 0.28 on, with each update before.
_WIRE: dict[str, Any] = {
    "packed": True,
    "packed_buffer_size_bytes": MESSAGE_BYTES,
    "packed_num_buffers": BUFFERS,
}


@dataclass(frozen=True)
class Member:
    """One pod of the group."""

    client: PodClient
    report: ServerReport
    rank: int  # of its first worker
    workers: int

    def update_info(self, tensors: Sequence[TensorInfo]) -> dict[str, Any]:
        """What it is told before tensors come."""
        info = {
            "names": [tensor.name for tensor in tensors],
            "dtype_names": [tensor.dtype for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
        }
        return info if release_at_least(self.report.offer, 0, 28) else info | _WIRE

    def init_info(self, by_id: dict[str, Any], by_store: dict[str, Any], world_size: int) -> dict[str, Any]:
        """How it joins."""
        offer = self.report.offer
        way = by_id if release_at_least(offer, 0, 32) else by_store
        wire = _WIRE if release_at_least(offer, 0, 28) else {}
        return {**way, "rank_offset": self.rank, "world_size": world_size, **wire}


@dataclass
class NcclGroup:
    """A group that works."""

    members: list[Member]
    communicator: libnccl.Communicator

    @property
    def pods(self) -> list[VllmPod]:
        """Its pods."""
        return [member.client.pod for member in self.members]


def connect(fleet: Fleet, pods: list[VllmPod], background: Background, seconds: float) -> NcclGroup:
    """Makes a group of this process and `pods`, which leave any group that they were in.

    Raises:
        WeightSyncError: a pod doesn't join in time; the message names those that answered with an error.
    """
    import torch

    library = libnccl.load()
    deadline = time.monotonic() + seconds
    try:
        members = background.run(_prepare(fleet, pods))
    except PodError as error:
        raise WeightSyncError(f"NCCL: a vLLM pod can't join a group: {error}") from error
    world_size = 1 + sum(member.workers for member in members)
    unique_id = libnccl.new_id(library)
    host, _, port = pods[0].url.removeprefix("http://").rpartition(":")
    address = rendezvous.address_towards(host, int(port))
    store = rendezvous.by_store(unique_id, address, world_size, seconds)
    direct = rendezvous.by_id(unique_id)
    joining = [
        background.submit(
            member.client.init_transfer(member.init_info(direct.init_info, store.init_info, world_size), seconds)
        )
        for member in members
    ]
    own = _Join(library, unique_id, world_size, torch.cuda.current_device())
    own.start()
    while own.is_alive() or not all(future.done() for future in joining):
        errors = [str(future.exception()) for future in joining if future.done() and future.exception()]
        if errors or own.error or time.monotonic() > deadline:
            waiting = [m.client.pod.url for m, f in zip(members, joining, strict=True) if not f.done()]
            for future in joining:
                future.cancel()
            seen = "; ".join(errors) or str(own.error or f"not done in {seconds:.0f} s")
            raise WeightSyncError(
                f"NCCL: no group of the trainer and {len(members)} vLLM pods: {seen}"
                + (f"; {', '.join(waiting)} still waited. Can the pods reach {address}?" if waiting else "")
            )
        time.sleep(_POLL_SECONDS)
    if own.error or own.communicator is None:
        raise WeightSyncError(f"NCCL: {own.error}")
    for future in joining:
        try:
            future.result()
        except PodError as error:
            own.communicator.abort("a vLLM pod did not join")
            raise WeightSyncError(f"NCCL: {error}") from error
    return NcclGroup(members, own.communicator)


class _Join(threading.Thread):
    """Joins the group; left behind where the others never come, because NCCL can't be interrupted there."""

    def __init__(self, library: Any, unique_id: bytes, world_size: int, device: int) -> None:
        super().__init__(name="nccl", daemon=True)
        self._arguments = (library, unique_id, world_size, device)
        self.communicator: libnccl.Communicator | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.communicator = libnccl.Communicator(*self._arguments)
        except Exception as error:
            self.error = error


async def _prepare(fleet: Fleet, pods: list[VllmPod]) -> list[Member]:
    reports = {report.pod: report for report in await probe_servers(pods)}
    members: list[Member] = []
    rank = 1
    for pod in pods:
        if pod not in reports:
            raise PodError(f"{pod.url} does not answer")
        client = fleet.client(pod)
        workers = await client.world_size()
        await _leave(client, reports[pod], workers)
        members.append(Member(client, reports[pod], rank, workers))
        rank += workers
    return members


async def _leave(client: PodClient, report: ServerReport, workers: int) -> None:
    """Clears what an earlier group or a killed trainer left in the pod."""
    # The usual answer is an error, that no update is active. A server of several workers doesn't outlive one
    # (gymtrain_vllm/worker_desync.py); there an update that was left makes the next call fail, and so starts it anew.
    if workers == 1:
        with contextlib.suppress(PodRefusedError):
            await client.finish_update()
    if "/shutdown_weight_transfer_engine" in report.offer.routes:
        await client.shutdown_transfer()
