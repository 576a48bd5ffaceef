"""Writing one safetensors file, with its sha256 on the way.

A file is 8 bytes (little-endian length of the header), the header (JSON: dtype, shape and byte range by tensor name,
padded with spaces to a multiple of 8), then the tensors' bytes: https://github.com/huggingface/safetensors. Written
here because the library takes a whole file at once, and neither streams nor hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Buffer, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gymtrain_api.manifest import WeightFile

if TYPE_CHECKING:  # torch takes seconds to import, and only the trainer's process has it
    import torch

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


def write_file(path: Path, tensors: Sequence[tuple[str, torch.Tensor]]) -> WeightFile:
    """Writes contiguous CPU tensors as one file.

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
