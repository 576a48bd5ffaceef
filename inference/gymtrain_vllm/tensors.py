"""Tensors of verified safetensors files, where the model wants them.

On a GPU each file becomes one block: hundreds of small copies take several times as long. A file that the GPU reads by
itself (`pinned_files`) is one copy. The bytes of others go through a little such memory: threads share out those of
this file and the next ones, as one thread copies them out of a file more slowly than a GPU takes them. On CPUs tensors
are views of the files.
"""

import json
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from gymtrain_vllm.pinned_files import PinnedFiles

_READERS = 8  # threads
_STEP = 8 << 20  # bytes that a thread reads at once
_AHEAD = 4 * _READERS * _STEP  # bytes on their way to the GPU, before another file is begun: bounds its memory
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


def read_tensors(
    files: list[Path], device: torch.device, pinned: PinnedFiles | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of everything in the files, in order. At its end nothing reads them any more.

    Args:
        files: of one version.
        device: where the tensors are wanted.
        pinned: of these files, those that the device reads by itself.
    """
    if device.type == "cpu":
        for file in files:
            with safe_open(file, framework="pt", device="cpu") as shard:
                for name in shard.keys():  # noqa: SIM118 - not a dict
                    yield name, shard.get_tensor(name)
        return
    with ThreadPoolExecutor(_READERS, thread_name_prefix="weights") as pool:
        reader = BlockReader(pool, device, pinned)
        waiting, coming = deque(files), deque[Coming]()
        try:
            while waiting or coming:
                while waiting and sum(one.block.nbytes for one in coming) < _AHEAD:
                    coming.append(reader.begin(waiting.popleft()))
                yield from coming.popleft().tensors().items()
        finally:
            reader.finish()


@dataclass(frozen=True)
class Coming:
    """A file on its way to the device."""

    header: dict[str, Any]
    block: torch.Tensor
    steps: list[Future[None]]

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of its tensors, as parts of the block. What uses them comes after the copies, in the device's stream."""
        for step in self.steps:
            step.result()
        return {name: _part(self.block, info) for name, info in self.header.items()}


class BlockReader:
    """Reads files into blocks of the device's memory, step by step, in the threads of a pool.

    A step is read into memory that the GPU reads by itself. Each thread has two pieces of it: while one is copied, the
    next step is read into the other.
    """

    def __init__(self, pool: Executor, device: torch.device, pinned: PinnedFiles | None = None) -> None:
        self._pool = pool
        self._device = device
        self._pinned = pinned
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._own = threading.local()

    def begin(self, file: Path) -> Coming:
        """Starts to read one file."""
        with file.open("rb", buffering=0) as source:
            length = int.from_bytes(source.read(8), "little")
            header: dict[str, Any] = json.loads(source.read(length))
            size = os.fstat(source.fileno()).st_size - 8 - length
        header.pop("__metadata__", None)
        block = torch.empty(size, dtype=torch.uint8, device=self._device)
        if self._pinned and (memory := self._pinned.tensor(file)) is not None:
            block.copy_(memory[8 + length :], non_blocking=True)
            return Coming(header, block, [])
        steps = [
            self._pool.submit(self._step, file, 8 + length + begin, block[begin : begin + _STEP])
            for begin in range(0, size, _STEP)
        ]
        return Coming(header, block, steps)

    def finish(self) -> None:
        """Waits for the copies: files may be written into afterwards."""
        if self._stream is not None:
            self._stream.synchronize()

    def _step(self, file: Path, offset: int, place: torch.Tensor) -> None:
        if not hasattr(self._own, "pieces"):
            self._own.pieces = deque(_Piece(self._stream) for _ in range(2))
        piece: _Piece = self._own.pieces[0]
        self._own.pieces.rotate()
        memory = piece.memory(place.numel())
        with file.open("rb", buffering=0) as source:
            _read(source.fileno(), memory, offset)
        piece.copy_to(place)


class _Piece:
    """Memory between a file and the device."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        """`stream`: of the copies to a GPU; None for other devices."""
        self._stream = stream
        # torch keeps pinned memory for the next load.
        self._host = torch.empty(_STEP, dtype=torch.uint8, pin_memory=stream is not None)
        self._copied: torch.cuda.Event | None = None

    def memory(self, size: int) -> memoryview:
        """To read into, once what it held is copied."""
        if self._copied is not None:
            self._copied.synchronize()
        return memoryview(self._host[:size].numpy())

    def copy_to(self, place: torch.Tensor) -> None:
        """Queues the copy."""
        host = self._host[: place.numel()]
        if self._stream is None:
            place.copy_(host)
            return
        with torch.cuda.stream(self._stream):
            place.copy_(host, non_blocking=True)
            self._copied = self._stream.record_event()


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
