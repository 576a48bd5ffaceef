"""How vLLM's workers learn the id of the NCCL group.

| release | way |
|---|---|
| 0.32 and later | the id itself in `init_info` (`nccl_unique_id_b64`) |
| before | `init_info` names a TCPStore of torch, where the worker finds the id pickled as vLLM's own class |
"""

from __future__ import annotations

import base64
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gymtrain_trainer.weights.transports.nccl.libnccl import ID_BYTES

# What the workers read first, and vLLM's class of it: StatelessProcessGroup.broadcast_obj from rank 0.
_KEY = "broadcast_from/0/0"
_MODULE, _CLASS = "vllm.distributed.device_communicators.pynccl_wrapper", "ncclUniqueId"


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
    if len(unique_id) != ID_BYTES:
        raise ValueError(f"an NCCL id has {ID_BYTES} bytes, not {len(unique_id)}")
    rebuild = b"c_ctypes\n_unpickle\n"
    structure = f"c{_MODULE}\n{_CLASS}\n".encode()
    state = b"}C" + bytes([ID_BYTES]) + unique_id + b"\x86"  # no attributes, and the memory
    return b"\x80\x03" + rebuild + structure + state + b"\x86R."


def address_towards(host: str, port: int) -> str:
    """This machine's address on the way to `host`. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), port))
        return str(probe.getsockname()[0])
