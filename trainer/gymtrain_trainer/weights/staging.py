"""A stream of tensors to sharded safetensors files: while one shard is written and hashed, the next is gathered.

Few shards are in memory at a time, never the whole model. hashlib and file writes release Python's lock, so that some
threads keep up with a GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from gymtrain_api.manifest import WeightFile, WeightManifest
from gymtrain_trainer.cpus import usable_cpus
from gymtrain_trainer.weights.errors import StagingError
from gymtrain_trainer.weights.safetensors_file import write_file
from gymtrain_trainer.weights.store import WeightStore

if TYPE_CHECKING:  # torch takes seconds to import, and only the trainer's process has it
    import torch

SHARD_BYTES = 32 << 20  # the unit of writing, hashing and fetching in parallel
_MOST_WRITERS = 8


def stage(
    store: WeightStore,
    number: int,
    version: str,
    tensors: Iterator[tuple[str, torch.Tensor]],
    dtype: str | None,
    shard_bytes: int = SHARD_BYTES,
) -> WeightManifest:
    """Writes one version and publishes it.

    Args:
        store: where to.
        number: of the sync.
        version: label of the sync.
        tensors: name and full tensor, on any device. Always read to its end: with a sharded model every tensor is a
            collective, and the other processes would wait for this one for ever.
        dtype: what floating-point tensors are cast to, the server's own type; None leaves them.
        shard_bytes: size from which a file is closed.

    Raises:
        StagingError: the disk is full or not writable, or no tensor came.
    """
    folder = store.begin(number)
    try:
        files = _write_shards(folder, _cast(tensors, dtype), shard_bytes)
    except OSError as error:
        for _ in tensors:
            pass
        store.drop(number)
        raise StagingError(f"cannot write weights to {folder}: {error}") from error
    if not files:
        raise StagingError("the model has no parameters to send")
    manifest = WeightManifest(version=version, files=files)
    store.commit(number, manifest)
    return manifest


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


def _write_shards(folder: Path, tensors: Iterator[tuple[str, torch.Tensor]], limit: int) -> list[WeightFile]:
    writers = max(1, min(_MOST_WRITERS, usable_cpus() - 1))
    files: list[WeightFile] = []
    with ThreadPoolExecutor(writers, thread_name_prefix="staging") as pool:
        pending: deque[Future[WeightFile]] = deque()
        for number, shard in enumerate(_shards(tensors, limit)):
            if len(pending) > writers:
                files.append(pending.popleft().result())
            pending.append(pool.submit(write_file, folder / f"{number:05}.safetensors", on_host(shard)))
        files += [future.result() for future in pending]
    return files


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
