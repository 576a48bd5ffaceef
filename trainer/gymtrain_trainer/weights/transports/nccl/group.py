"""The NCCL group of this process (rank 0) and every worker of every vLLM pod.

Ranks are given out pod by pod: with two pods of two workers each, the first pod has 1 and 2, the second 3 and 4. How
vLLM's workers learn the id of the group:

| release | way |
|---|---|
| 0.32 and later | the id itself in `init_info` (`nccl_unique_id_b64`) |
| before | `init_info` names a TCPStore of torch, where the worker finds the id pickled as vLLM's own class |
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gymtrain_api.transports import release_at_least
from gymtrain_trainer.weights.errors import PodError, PodRefusedError, WeightSyncError
from gymtrain_trainer.weights.event_loop_thread import EventLoopThread
from gymtrain_trainer.weights.pods.client import PodClient, VllmPod
from gymtrain_trainer.weights.pods.fleet import Fleet
from gymtrain_trainer.weights.pods.probe import ServerReport, probe_servers
from gymtrain_trainer.weights.transports.nccl import libnccl
from gymtrain_trainer.weights.transports.nccl.packing import BUFFERS, TensorInfo

_POLL_SECONDS = 0.02
# What both sides must agree on: with the handshake from 0.28 on, with each update before.
_WIRE: dict[str, Any] = {"packed": True, "packed_num_buffers": BUFFERS}
_WIRE_SIZE = "packed_buffer_size_bytes"
# What the workers read first, and vLLM's class of it: StatelessProcessGroup.broadcast_obj from rank 0.
_KEY = "broadcast_from/0/0"
_MODULE, _CLASS = "vllm.distributed.device_communicators.pynccl_wrapper", "ncclUniqueId"


@dataclass(frozen=True)
class Member:
    """One pod of the group."""

    client: PodClient
    report: ServerReport
    rank: int  # of its first worker
    workers: int
    message_bytes: int  # above which a message is closed

    def update_info(self, tensors: Sequence[TensorInfo]) -> dict[str, Any]:
        """What it is told before tensors come."""
        info = {
            "names": [tensor.name for tensor in tensors],
            "dtype_names": [tensor.dtype for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
        }
        return info if release_at_least(self.report.offer, 0, 28) else info | self._wire

    def init_info(self, direct: Rendezvous, store: Rendezvous, world_size: int) -> dict[str, Any]:
        """How it joins: by the id itself, or by the store where it is."""
        offer = self.report.offer
        way = direct if release_at_least(offer, 0, 32) else store
        wire = self._wire if release_at_least(offer, 0, 28) else {}
        return {**way.init_info, "rank_offset": self.rank, "world_size": world_size, **wire}

    @property
    def _wire(self) -> dict[str, Any]:
        return {**_WIRE, _WIRE_SIZE: self.message_bytes}


@dataclass
class NcclGroup:
    """A group that works."""

    members: list[Member]
    communicator: libnccl.Communicator
    thread: EventLoopThread  # of calls to its pods

    @property
    def pods(self) -> list[VllmPod]:
        """Its pods."""
        return [member.client.pod for member in self.members]

    def on_all(self, call: Callable[[PodClient], Coroutine[Any, Any, None]]) -> None:
        """One call to every pod, all at once.

        Raises:
            WeightSyncError: one of them failed.
        """

        async def calls() -> None:
            await asyncio.gather(*(call(member.client) for member in self.members))

        try:
            self.thread.run(calls())
        except PodError as error:
            raise WeightSyncError(str(error)) from error


def connect(
    fleet: Fleet, pods: list[VllmPod], thread: EventLoopThread, seconds: float, message_bytes: int
) -> NcclGroup:
    """Makes a group of this process and `pods`, which leave any group that they were in.

    Raises:
        WeightSyncError: a pod doesn't join in time; the message names those that answered with an error.
    """
    import torch

    library = libnccl.load()
    deadline = time.monotonic() + seconds
    try:
        members = thread.run(_prepare(fleet, pods, message_bytes))
    except PodError as error:
        raise WeightSyncError(f"NCCL: a vLLM pod can't join a group: {error}") from error
    world_size = 1 + sum(member.workers for member in members)
    unique_id = libnccl.new_id(library)
    host, _, port = pods[0].url.removeprefix("http://").rpartition(":")
    address = address_towards(host, int(port))
    store = by_store(unique_id, address, world_size, seconds)
    direct = by_id(unique_id)
    joining = [
        thread.submit(member.client.init_transfer(member.init_info(direct, store, world_size), seconds))
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
    return NcclGroup(members, own.communicator, thread)


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


async def _prepare(fleet: Fleet, pods: list[VllmPod], message_bytes: int) -> list[Member]:
    reports = {report.pod: report for report in await probe_servers(pods)}
    members: list[Member] = []
    rank = 1
    for pod in pods:
        if pod not in reports:
            raise PodError(f"{pod.url} does not answer")
        client = fleet.client(pod)
        workers = await client.world_size()
        await _leave(client, reports[pod], workers)
        members.append(Member(client, reports[pod], rank, workers, message_bytes))
        rank += workers
    return members


async def _leave(client: PodClient, report: ServerReport, workers: int) -> None:
    """Clears what an earlier group or a killed trainer left in the pod."""
    # The usual answer is an error, that no update is active. A server of several workers doesn't outlive one
    # (gymtrain_vllm/server_exit.py); there an update that was left makes the next call fail, and so restarts it.
    if workers == 1:
        with contextlib.suppress(PodRefusedError):
            await client.finish_update()
    if "/shutdown_weight_transfer_engine" in report.offer.routes:
        await client.shutdown_transfer()


@dataclass
class Rendezvous:
    """The part of `init_info` that says how to join; keep it until all have joined."""

    init_info: dict[str, Any]
    store: Any = None


def by_id(unique_id: bytes) -> Rendezvous:
    """Hands the id over directly."""
    return Rendezvous({"nccl_unique_id_b64": base64.b64encode(unique_id).decode()})


def by_store(unique_id: bytes, address: str, world_size: int, seconds: float) -> Rendezvous:
    """Opens a store at `address`, an address of this machine that the workers reach, and puts the id there."""
    from torch.distributed import TCPStore

    store = TCPStore(
        address,
        0,
        world_size=world_size,
        is_master=True,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
        use_libuv=False,  # as the workers' side
    )
    store.set(_KEY, pickled(unique_id))
    return Rendezvous({"master_address": address, "master_port": store.port}, store)


def pickled(unique_id: bytes) -> bytes:
    """What pickle makes of vLLM's ctypes structure with this content, made without vLLM."""
    if len(unique_id) != libnccl.ID_BYTES:
        raise ValueError(f"an NCCL id has {libnccl.ID_BYTES} bytes, not {len(unique_id)}")
    rebuild = b"c_ctypes\n_unpickle\n"
    structure = f"c{_MODULE}\n{_CLASS}\n".encode()
    state = b"}C" + bytes([libnccl.ID_BYTES]) + unique_id + b"\x86"  # no attributes, and the memory
    return b"\x80\x03" + rebuild + structure + state + b"\x86R."


def address_towards(host: str, port: int) -> str:
    """This machine's address on the way to `host`. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), port))
        return str(probe.getsockname()[0])
