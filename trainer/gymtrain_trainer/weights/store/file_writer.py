"""Writes the files of one version in threads, part by part, and notes where each tensor lies."""

from __future__ import annotations

import os
import shutil
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING

from gymtrain_api.manifest import WeightPart
from gymtrain_trainer.weights.store.layout import Layout, TensorSlice, dtype_of
from gymtrain_trainer.weights.store.safetensors_file import encode
from gymtrain_trainer.weights.store.shard_file import ShardFile
from gymtrain_trainer.weights.store.weight_store import Draft

if TYPE_CHECKING:
    import torch


class FileWriter:
    """Of one draft. Its methods are one thread's."""

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
        file = ShardFile(self._draft.folder / name, content)
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
        return {name: tuple(parts) for name, parts in self._parts.items()}

    def _part(self, file: ShardFile, begin: int, settled: bool) -> None:
        part = file.write(begin, min(self._part_bytes, file.size - begin))
        if settled:
            part = part.model_copy(update={"kept": True})
            with self._lock:
                self._parts[part.name].append(part)
        self._draft.manifest.add(part)
