"""Tells the tensors of a version that changed from those that did not, and puts them into files of their own.

| a tensor | goes to |
|---|---|
| changed | a file of this version |
| is what it was, for the first time | a file of this version |
| and the next time, with all of its module | a settled file: written once more, and carried on from then |
| is settled, and is what it was | nowhere: its file is carried on, as long as all of its tensors are |
| was settled, and changed | a file of this version, from now on; so does its module. The rest of its file settles again |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

from gymtrain_trainer.weights.store.file_writer import FileWriter
from gymtrain_trainer.weights.store.layout import Earlier, Layout, module_of

if TYPE_CHECKING:
    import torch

type Named = tuple[str, torch.Tensor]


class Sorting:
    """Of one version, beside an earlier one."""

    def __init__(self, folder: Path, before: Layout, files: FileWriter, shard_bytes: int) -> None:
        self._folder = folder
        self._before = before
        self._earlier = Earlier(before)
        self._files = files
        self._steady = before.steady()
        self._changed = _Collector(files.write, shard_bytes)
        self._settling = _Collector(lambda shard: files.write(shard, settled=True), shard_bytes)
        self._same: set[str] = set()
        self._fickle = set(before.fickle)

    def run(self, shards: Iterable[list[Named]], pool: Executor) -> Layout:
        """Writes all files of the version.

        Args:
            shards: contiguous CPU tensors.
            pool: compares.

        Raises:
            OSError: the disk is full, or an earlier file can't be read.
        """
        for shard in shards:
            self._sort(shard, list(pool.map(lambda named: self._earlier.same(*named), shard)))
        self._carry()
        self._changed.flush()
        self._settling.flush()
        settled = self._files.finish()
        return Layout(self._folder, self._files.slices, settled, frozenset(self._same), frozenset(self._fickle))

    def _sort(self, shard: list[Named], same: list[bool]) -> None:
        goes_on: list[tuple[str, torch.Tensor, bool]] = []
        for (name, tensor), unchanged in zip(shard, same, strict=True):
            piece = self._before.slices.get(name)
            settled = piece is not None and piece.file in self._before.settled
            if unchanged:
                self._same.add(name)
            elif settled:
                self._fickle.add(module_of(name))
            if not (unchanged and settled):
                goes_on.append((name, tensor, unchanged and name in self._steady))
        for settles, collector in ((False, self._changed), (True, self._settling)):
            for name, tensor in _unbound(shard, [(name, tensor) for name, tensor, goes in goes_on if goes == settles]):
                collector.add(name, tensor)

    def _carry(self) -> None:
        members: dict[str, list[str]] = {file: [] for file in self._before.settled}
        for name, piece in self._before.slices.items():
            if piece.file in members:
                members[piece.file].append(name)
        for file, names in members.items():
            stay = [name for name in names if name in self._same]
            if len(stay) == len(names):
                self._files.carry(self._before, file)
                continue
            for name in stay:
                collector = self._changed if module_of(name) in self._fickle else self._settling
                collector.add(name, self._earlier.tensor(name))


def _unbound(shard: list[Named], some: list[Named]) -> list[Named]:
    """`some` of a shard's tensors, copied where they would hold more memory than twice their own.

    Tensors from a GPU share one block, which a single one of them would hold until its file is written.
    """
    size = sum(tensor.nbytes for _, tensor in some)
    if not shard[0][1].is_pinned() or 2 * size >= sum(tensor.nbytes for _, tensor in shard):
        return some
    return [(name, tensor.clone()) for name, tensor in some]


class _Collector:
    """Tensors for the next file of one kind."""

    def __init__(self, write: Callable[[list[Named]], None], limit: int) -> None:
        self._write = write
        self._limit = limit
        self._waiting: list[Named] = []
        self._size = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """One more; full files are written."""
        self._waiting.append((name, tensor))
        self._size += tensor.nbytes
        if self._size >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Writes what is left."""
        if self._waiting:
            self._write(self._waiting)
        self._waiting, self._size = [], 0
