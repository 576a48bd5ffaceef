"""A stream of tensors to sharded safetensors files: while parts are written and hashed, the next shard is gathered.

Each part is announced as soon as it is written, so that pods fetch while the trainer still writes. Few shards are in
memory at a time, never the whole model. A large tensor is one file and many parts: no thread works on it alone.
Tensors that did not change since the last version are told apart (`sorting`) and not written again.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from gymtrain_trainer.cpus import usable_cpus
from gymtrain_trainer.weights.errors import StagingError
from gymtrain_trainer.weights.store.file_writer import FileWriter
from gymtrain_trainer.weights.store.layout import Layout
from gymtrain_trainer.weights.store.sorting import Sorting
from gymtrain_trainer.weights.store.weight_store import Draft

if TYPE_CHECKING:  # torch takes seconds to import, and only the trainer's process has it
    import torch

SHARD_BYTES = 32 << 20  # size from which a file is closed
PART_BYTES = 8 << 20  # the unit of writing, hashing and fetching in parallel
_MOST_WRITERS = 8
_AHEAD = 4  # parts that wait for each writer: bounds the memory


def stage(
    draft: Draft,
    tensors: Iterator[tuple[str, torch.Tensor]],
    dtype: str | None,
    shard_bytes: int = SHARD_BYTES,
    part_bytes: int = PART_BYTES,
) -> None:
    """Writes one version, and ends its manifest.

    Args:
        draft: where to.
        tensors: name and full tensor, on any device. Always read to its end: with a sharded model every tensor is a
            collective, and the other processes would wait for this one for ever.
        dtype: what floating-point tensors are cast to, the server's own type; None leaves them.
        shard_bytes: size from which a file is closed.
        part_bytes: largest size of a part.

    Raises:
        StagingError: the disk is full or not writable, or no tensor came.
    """
    try:
        _write_files(draft, _cast(tensors, dtype), shard_bytes, part_bytes)
    except OSError as error:
        for _ in tensors:
            pass
        raise StagingError(f"cannot write weights to {draft.folder}: {error}") from error


def _cast(tensors: Iterator[tuple[str, torch.Tensor]], dtype: str | None) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    target = getattr(torch, dtype) if dtype else None
    for name, tensor in tensors:
        value = tensor.detach()
        if target is not None and value.is_floating_point():
            value = value.to(target)  # on its own device: half the bytes to copy
        yield name, value


def on_host(shard: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """The shard's tensors in this machine's memory: one copy from the GPU for all tensors of one type."""
    import torch

    if not shard[0][1].is_cuda or len({tensor.dtype for _, tensor in shard}) > 1:
        return [(name, tensor.to("cpu").contiguous()) for name, tensor in shard]
    together = torch.cat([tensor.reshape(-1) for _, tensor in shard])
    host = torch.empty(together.shape, dtype=together.dtype, pin_memory=True)  # torch keeps such memory for the next
    host.copy_(together)
    parts = host.split([tensor.numel() for _, tensor in shard])
    return [(name, part.view(tensor.shape)) for (name, tensor), part in zip(shard, parts, strict=True)]


def _write_files(draft: Draft, tensors: Iterator[tuple[str, torch.Tensor]], shard_bytes: int, part_bytes: int) -> None:
    writers = max(1, min(_MOST_WRITERS, usable_cpus() - 1))
    with ThreadPoolExecutor(writers, thread_name_prefix="staging") as pool:
        files = FileWriter(draft, pool, writers * _AHEAD, part_bytes)
        try:
            shards = (on_host(shard) for shard in _shards(tensors, shard_bytes))
            if draft.before is None:
                for shard in shards:
                    files.write(shard)
                layout = Layout(draft.folder, files.slices, files.finish())
            else:
                with ThreadPoolExecutor(writers, thread_name_prefix="comparing") as comparing:
                    layout = Sorting(draft.folder, draft.before, files, shard_bytes).run(shards, comparing)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if not files.slices:
        raise StagingError("the model has no parameters to send")
    draft.manifest.end(layout)


def _shards(tensors: Iterator[tuple[str, torch.Tensor]], limit: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
    shard: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in tensors:
        shard.append((name, tensor))
        size += tensor.nbytes
        if size >= limit:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard
