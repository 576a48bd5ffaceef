"""Tensors of verified safetensors files, where the model wants them.

On a GPU each file travels in one copy, the next ones meanwhile in other threads: hundreds of small copies from files
that were just mapped take several times as long. On CPUs tensors are views of the files.
"""

import json
import mmap
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

_AHEAD = 4  # files on their way to the GPU
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def read_tensors(files: list[Path], device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of everything in the files, in order."""
    if device.type == "cpu":
        for file in files:
            with safe_open(file, framework="pt", device="cpu") as shard:
                for name in shard.keys():  # noqa: SIM118 - not a dict
                    yield name, shard.get_tensor(name)
        return
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="weights") as pool:
        waiting = deque(files)
        coming: deque[Future[dict[str, torch.Tensor]]] = deque()
        while waiting or coming:
            while waiting and len(coming) < _AHEAD:
                coming.append(pool.submit(read_whole, waiting.popleft(), device))
            yield from coming.popleft().result().items()


def read_whole(file: Path, device: torch.device) -> dict[str, torch.Tensor]:
    """All tensors of one file, as parts of one block of the device's memory."""
    with file.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
        length = int.from_bytes(memory[:8], "little")
        header: dict[str, Any] = json.loads(memory[8 : 8 + length])
        start, size = 8 + length, len(memory) - 8 - length
        if not size:
            block = torch.empty(0, dtype=torch.uint8, device=device)
        else:
            mapped = torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=size)
            block = mapped.to(device, copy=True)
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()  # others will read it from a stream of their own
            del mapped  # or the mapping can't be closed
    header.pop("__metadata__", None)
    return {name: _part(block, info) for name, info in header.items()}


def _part(block: torch.Tensor, info: dict[str, Any]) -> torch.Tensor:
    dtype, (begin, end) = _DTYPES[info["dtype"]], info["data_offsets"]
    part = block[begin:end]
    if begin % dtype.itemsize:  # behind a tensor of a smaller type
        part = part.clone()
    return part.view(dtype).view(info["shape"])
