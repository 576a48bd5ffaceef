"""Reading safetensors files without torch."""

import json
import struct
from typing import Any

type Tensors = dict[str, bytes]


def tensors(data: bytes) -> Tensors:
    """The bytes of each tensor of a file, by name."""
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header: dict[str, Any] = json.loads(data[8:start])
    places = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
    return {name: data[start + first : start + last] for name, (first, last) in places.items()}
