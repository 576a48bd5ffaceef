"""Writing a stream of tensors as sharded safetensors files, with each file's sha256 on the way.

A file is 8 bytes (little-endian length of the header), the header (JSON: dtype, shape and byte range by tensor name,
padded with spaces to a multiple of 8), then the tensors' bytes: https://github.com/huggingface/safetensors. Written
here because the library takes a whole file at once, and neither streams nor hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Buffer, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gymtrain_api.manifest import WeightFile, WeightManifest
from gymtrain_trainer.weights.errors import StagingError
from gymtrain_trainer.weights.store import WeightStore

if TYPE_CHECKING:  # torch takes seconds to import, and only the trainer's process has it
    import torch

SHARD_BYTES = 256 << 20  # vLLM fetches a few files at once, and a large file would be one stream

_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


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
        files = list(_write_shards(folder, _on_cpu(tensors, dtype), shard_bytes))
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


def _on_cpu(tensors: Iterator[tuple[str, torch.Tensor]], dtype: str | None) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    target = getattr(torch, dtype) if dtype else None
    for name, tensor in tensors:
        value = tensor.detach()
        if target is not None and value.is_floating_point():
            value = value.to(target)  # on its own device: half the bytes to copy
        yield name, value.to("cpu").contiguous()


def _write_shards(folder: Path, tensors: Iterator[tuple[str, torch.Tensor]], shard_bytes: int) -> Iterator[WeightFile]:
    number = 0
    shard: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in tensors:
        shard.append((name, tensor))
        size += tensor.nbytes
        if size >= shard_bytes:
            yield write_file(folder / f"{number:05}.safetensors", shard)
            number, size = number + 1, 0
            shard.clear()
    if shard:
        yield write_file(folder / f"{number:05}.safetensors", shard)


def write_file(path: Path, tensors: list[tuple[str, torch.Tensor]]) -> WeightFile:
    """Writes contiguous CPU tensors as one safetensors file.

    Raises:
        OSError: the disk is full or not writable.
    """
    header: dict[str, object] = {}
    offset = 0
    for name, tensor in tensors:
        kind = _DTYPES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    size = 0
    with path.open("wb") as file:
        parts: list[Buffer] = [len(text).to_bytes(8, "little"), text, *(_bytes(tensor) for _, tensor in tensors)]
        for part in parts:
            digest.update(part)
            size += file.write(part)
    return WeightFile(name=path.name, bytes=size, sha256=digest.hexdigest())


def _bytes(tensor: torch.Tensor) -> Buffer:
    """The tensor's memory, not copied."""
    import torch

    flat: Buffer = tensor.reshape(-1).view(torch.uint8).numpy()
    return flat
