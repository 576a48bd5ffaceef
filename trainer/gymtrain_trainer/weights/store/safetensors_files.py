"""The safetensors files of one version: their bytes, and the threads that write and hash them part by part.

The format (https://github.com/huggingface/safetensors): 8 bytes (little-endian length of the header), the header (JSON:
dtype, shape and byte range by tensor name, padded with spaces to a multiple of 8), then the tensors' bytes. Made here
because the library takes a whole file at once, and neither streams nor hashes.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from gymtrain_api.manifest import WeightPart
from gymtrain_api.spare_files import SpareFiles
from gymtrain_trainer.weights.store.layout import Layout, TensorSlice, dtype_of
from gymtrain_trainer.weights.store.weight_store import Draft

if TYPE_CHECKING:  # torch takes seconds to import, and only the trainer's process has it
    import torch

_CHUNK = 8 << 20  # bytes: written, then hashed. Of smaller ones the threads wait more for Python's lock than they gain
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


class ShardFile:
    """A file of known size, written and hashed in parts that threads share out among themselves."""

    def __init__(self, path: Path, content: Sequence[memoryview], spare: SpareFiles) -> None:
        """Makes the file, with any bytes.

        Args:
            path: of the file.
            content: its bytes, in order.
            spare: a file that may become this one.

        Raises:
            OSError: the disk is full or not writable.
        """
        self._path = path
        self._content = content
        self._ends = list(accumulate(len(piece) for piece in content))
        self.size = self._ends[-1]
        if not spare.take(path, self.size):
            with path.open("wb") as file:
                file.truncate(self.size)

    def write(self, offset: int, length: int) -> WeightPart:
        """Writes and hashes one range. Hashing and file writes release Python's lock.

        Raises:
            OSError: the disk is full or not writable.
        """
        digest, at = blake3(), offset
        with self._path.open("r+b", buffering=0) as file:
            for chunk in self._chunks(offset, offset + length):
                written = 0
                while written < len(chunk):
                    written += os.pwrite(file.fileno(), chunk[written:], at + written)
                digest.update(chunk)
                at += len(chunk)
        return WeightPart(name=self._path.name, size=self.size, offset=offset, bytes=length, blake3=digest.hexdigest())

    def _chunks(self, begin: int, end: int) -> Iterator[memoryview]:
        while begin < end:
            number = bisect_right(self._ends, begin)
            piece = self._content[number]
            start = begin - (self._ends[number] - len(piece))
            chunk = piece[start : start + min(_CHUNK, end - begin)]
            yield chunk
            begin += len(chunk)


class FileWriter:
    """Writes the files of one version in threads, and notes where each tensor lies. Its methods are one thread's."""

    def __init__(self, draft: Draft, pool: Executor, most_waiting: int, part_bytes: int) -> None:
        """
        Args:
            draft: where to.
            pool: writes.
            most_waiting: parts that may wait for the pool before another file is begun: bounds the memory.
            part_bytes: largest size of a part.
        """
        self._draft = draft
        self._pool = pool
        self._most_waiting = most_waiting
        self._part_bytes = part_bytes
        self._pending: deque[Future[None]] = deque()
        self._lock = threading.Lock()
        self._fresh = self._settled = 0  # files
        self._parts: dict[str, list[WeightPart]] = defaultdict(list)  # of settled files
        self.slices: dict[str, TensorSlice] = {}

    def write(self, tensors: Sequence[tuple[str, torch.Tensor]], *, settled: bool = False) -> None:
        """Begins a file with contiguous CPU tensors, which must not change before `finish` has returned.

        Raises:
            OSError: the disk is full or not writable.
        """
        while len(self._pending) > self._most_waiting:
            self._pending.popleft().result()
        if settled:
            # The number of a sync is given out once in an attempt, and so is this name.
            name, self._settled = f"s{self._draft.folder.name}-{self._settled:05}.safetensors", self._settled + 1
        else:
            name, self._fresh = f"{self._fresh:05}.safetensors", self._fresh + 1
        content = encode(tensors)
        offset = len(content[0])
        for tensor_name, tensor in tensors:
            piece = TensorSlice(name, offset, tensor.nbytes, dtype_of(tensor), tuple(tensor.shape))
            self.slices[tensor_name] = piece
            offset += tensor.nbytes
        file = ShardFile(self._draft.folder / name, content, self._draft.spare)
        for begin in range(0, file.size, self._part_bytes):
            self._pending.append(self._pool.submit(self._part, file, begin, settled))

    def carry(self, before: Layout, name: str) -> None:
        """Takes a settled file over from the version before.

        Raises:
            OSError: it is gone, or the disk is full.
        """
        target = self._draft.folder / name
        try:
            os.link(before.folder / name, target)
        except OSError:  # not every file system has links
            shutil.copyfile(before.folder / name, target)
        with self._lock:
            self._parts[name] += before.settled[name]
        for part in before.settled[name]:
            self._draft.manifest.add(part, carried=True)
        self.slices |= {tensor: piece for tensor, piece in before.slices.items() if piece.file == name}

    def finish(self) -> dict[str, tuple[WeightPart, ...]]:
        """Waits for all; the parts of settled files.

        Raises:
            OSError: the disk is full or not writable.
        """
        while self._pending:
            self._pending.popleft().result()
        self._draft.spare.clear()
        return {name: tuple(parts) for name, parts in self._parts.items()}

    def _part(self, file: ShardFile, begin: int, settled: bool) -> None:
        part = file.write(begin, min(self._part_bytes, file.size - begin))
        if settled:
            part = part.model_copy(update={"kept": True})
            with self._lock:
                self._parts[part.name].append(part)
        self._draft.manifest.add(part)
