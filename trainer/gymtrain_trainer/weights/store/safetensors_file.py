"""The safetensors format, https://github.com/huggingface/safetensors.

8 bytes (little-endian length of the header), the header (JSON: dtype, shape and byte range by tensor name, padded with
spaces to a multiple of 8), then the tensors' bytes. Made here because the library takes a whole file at once, and
neither streams nor hashes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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


def encode(tensors: Sequence[tuple[str, torch.Tensor]]) -> list[memoryview]:
    """The bytes of one file that holds these contiguous CPU tensors, whose memory is not copied."""
    header: dict[str, object] = {}
    offset = 0
    for name, tensor in tensors:
        kind = _DTYPES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    parts = [memoryview(len(text).to_bytes(8, "little") + text)]
    return parts + [_bytes(tensor) for _, tensor in tensors if tensor.nbytes]


def write_file(path: Path, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Writes contiguous CPU tensors as one file.

    Raises:
        OSError: the disk is full or not writable.
    """
    with path.open("wb") as file:
        file.writelines(encode(tensors))


def _bytes(tensor: torch.Tensor) -> memoryview:
    import torch

    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
