"""Gathers the weights of a sharded model: many tensors by one collective, in the type that they are wanted in.

    share of each rank, FSDP2          a bucket                                  whole tensors
    q [2 of 4 rows] float32 ──cast──►  mine ──all_gather──► [rank, q | k | v] ──► q [4 rows], k, v
    k, v

torch's own `DTensor.full_tensor()` is a collective for each tensor, of the type that is trained: float32, twice the
bytes of the bfloat16 that vLLM holds. Casting is by element, so that the result is the same, bit by bit.

A rank holds no more than one bucket beside what its reader keeps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

BUCKET_BYTES = 256 << 20  # of all ranks together; a larger tensor is a bucket of its own

type Named = tuple[str, torch.Tensor]


@dataclass(frozen=True)
class _Share:
    """What this rank has of a tensor that is sharded by rows.

    Attributes:
        rows: of each rank's slot in a bucket. The last ranks may have fewer: rows are dealt out as by torch.chunk.
    """

    name: str
    part: torch.Tensor
    shape: torch.Size
    dtype: torch.dtype
    rows: int

    @property
    def slot(self) -> int:
        """Elements of the slot."""
        return int(self.rows * prod(self.shape[1:]))


def gathered(
    named: Iterable[Named], device: torch.device, dtype: torch.dtype | None = None, bucket_bytes: int = BUCKET_BYTES
) -> Iterator[Named]:
    """The same tensors, whole and on `device`, in their order. A collective where any is sharded.

    Every rank reads it to its end, and gives the same `named`, `dtype` and `bucket_bytes`.

    Args:
        named: tensors, sharded ones as DTensor; read lazily, one bucket ahead.
        device: where the process group works, such as this rank's GPU.
        dtype: what floating-point tensors that are sharded are cast to; None leaves them.
        bucket_bytes: of a bucket, unless a single tensor is larger.
    """
    bucket: list[_Share] = []
    where: tuple[Any, torch.dtype] | None = None  # of the bucket: group and type
    size = 0
    for name, tensor in named:
        group = _group(tensor)
        if group is None:
            yield from _whole(bucket, where, device)
            bucket, where, size = [], None, 0
            here = tensor.detach().to(device)
            yield name, here.full_tensor() if isinstance(here, DTensor) else here
            continue
        share = _share(name, tensor, dtype, dist.get_world_size(group))
        more = share.slot * share.dtype.itemsize * dist.get_world_size(group)
        if bucket and (where != (group, share.dtype) or size + more > bucket_bytes):
            yield from _whole(bucket, where, device)
            bucket, size = [], 0
        bucket.append(share)
        where, size = (group, share.dtype), size + more
    yield from _whole(bucket, where, device)


def _group(tensor: torch.Tensor) -> Any:
    """The ranks among which the tensor's rows are dealt out; None if it isn't, or otherwise sharded."""
    if not isinstance(tensor, DTensor) or not tensor.dim():
        return None
    sharded = [axis for axis, placement in enumerate(tensor.placements) if type(placement) is not Replicate]
    if len(sharded) != 1 or type(tensor.placements[sharded[0]]) is not Shard:
        return None
    return tensor.device_mesh.get_group(sharded[0]) if tensor.placements[sharded[0]].dim == 0 else None


def _share(name: str, tensor: DTensor, dtype: torch.dtype | None, ranks: int) -> _Share:
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    return _Share(name, tensor.detach().to_local(), tensor.shape, kind, -(-tensor.shape[0] // ranks))


def _whole(bucket: list[_Share], where: tuple[Any, torch.dtype] | None, device: torch.device) -> Iterator[Named]:
    if not bucket or where is None:
        return
    group, dtype = where
    mine = torch.empty(sum(share.slot for share in bucket), dtype=dtype, device=device)
    at = 0
    for share in bucket:
        mine[at : at + share.part.numel()].copy_(share.part.reshape(-1))
        at += share.slot
    parts = torch.empty(dist.get_world_size(group) * mine.numel(), dtype=dtype, device=device)
    dist.all_gather_single(parts, mine, group=group)
    parts, at = parts.view(-1, mine.numel()), 0
    del mine
    for share in bucket:
        rows = parts[:, at : at + share.slot].reshape(-1, *share.shape[1:])
        yield share.name, rows[: share.shape[0]]
        at += share.slot
