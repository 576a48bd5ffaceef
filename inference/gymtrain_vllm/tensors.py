"""Tensors of verified safetensors files, where the model wants them.

On a GPU each file becomes one block, the next ones meanwhile in other threads: hundreds of small copies take several
times as long. Bytes go through a little memory that the GPU reads by itself: from files that were just mapped they come
at half the speed. On CPUs tensors are views of the files.
"""

import json
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

_AHEAD = 4  # files on their way to the GPU
_STEP = 8 << 20  # bytes that a thread reads at once
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
    with file.open("rb", buffering=0) as source:
        length = int.from_bytes(source.read(8), "little")
        header: dict[str, Any] = json.loads(source.read(length))
        start = 8 + length
        size = os.fstat(source.fileno()).st_size - start
        block = torch.empty(size, dtype=torch.uint8, device=device)
        # Pinned memory is kept by torch for the next file.
        host = torch.empty(min(size, _STEP), dtype=torch.uint8, pin_memory=device.type == "cuda")
        memory = memoryview(host.numpy())
        for offset in range(0, size, _STEP):
            count = min(_STEP, size - offset)
            _read(source.fileno(), memory[:count], start + offset)
            block[offset : offset + count].copy_(host[:count])  # done when it returns
    header.pop("__metadata__", None)
    return {name: _part(block, info) for name, info in header.items()}


def _read(file: int, memory: memoryview, offset: int) -> None:
    done = 0
    while done < len(memory):
        count = os.preadv(file, [memory[done:]], offset + done)
        if not count:
            raise OSError(f"the file ends at byte {offset + done}")
        done += count


def _part(block: torch.Tensor, info: dict[str, Any]) -> torch.Tensor:
    dtype, (begin, end) = _DTYPES[info["dtype"]], info["data_offsets"]
    part = block[begin:end]
    if begin % dtype.itemsize:  # behind a tensor of a smaller type
        part = part.clone()
    return part.view(dtype).view(info["shape"])
