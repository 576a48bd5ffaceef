"""A stream of tensors to sharded safetensors files: while parts are written and hashed, the next shard is gathered.

Each part is announced as soon as it is written, so that pods fetch while the trainer still writes. Few shards are in
memory at a time, never the whole model. A large tensor is one file and many parts: no thread works on it alone.

Tensors that changed since the last version and those that did not go to files of their own:

| a tensor | goes to |
|---|---|
| changed | a file of this version |
| is what it was, for the first time | a file of this version |
| and the next time, with all of its module | a settled file: written once more, and carried on from then |
| is settled, and is what it was | nowhere: its file is carried on, as long as all of its tensors are |
| was settled, and changed | a file of this version, from now on, as its module does; others of its file settle again |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from gymtrain_trainer.cpus import usable_cpus
from gymtrain_trainer.weights.errors import StagingError
from gymtrain_trainer.weights.store.layout import Earlier, Layout, module_of
from gymtrain_trainer.weights.store.safetensors_files import FileWriter
from gymtrain_trainer.weights.store.weight_store import Draft

if TYPE_CHECKING:  # torch takes seconds to import, and only the trainer's process has it
    import torch

SHARD_BYTES = 64 << 20  # size from which a file is closed
# The unit of writing, hashing and fetching in parallel. Each costs milliseconds of Python, in which the process's other
# threads wait: with half of this size, a sync of 8 GB took 1.3 times as long (docs/recorded/gpu/sync.md).
PART_BYTES = 64 << 20
_MOST_WRITERS = 8
_AHEAD = 1  # parts that wait for each writer: bounds the memory

type NamedTensor = tuple[str, torch.Tensor]


def stage(
    draft: Draft,
    tensors: Iterator[NamedTensor],
    dtype: str | None,
    shard_bytes: int = SHARD_BYTES,
    part_bytes: int = PART_BYTES,
) -> None:
    """Writes one version, and ends its manifest.

    Args:
        draft: where to.
        tensors: name and full tensor, on any device. Always read to its end: with a sharded model every tensor is a
            collective, and the other processes would wait for this one forever.
        dtype: what floating-point tensors are cast to, the server's own type; None leaves them.
        shard_bytes: size from which a file is closed.
        part_bytes: largest size of a part.

    Raises:
        StagingError: the disk is full or not writable, or no tensor came.
    """
    try:
        _write_files(draft, _cast(tensors, dtype), shard_bytes, part_bytes)
    except OSError as error:
        for _ in tensors:
            pass
        raise StagingError(f"cannot write weights to {draft.folder}: {error}") from error


def _cast(tensors: Iterator[NamedTensor], dtype: str | None) -> Iterator[NamedTensor]:
    import torch

    target = getattr(torch, dtype) if dtype else None
    for name, tensor in tensors:
        value = tensor.detach()
        if target is not None and value.is_floating_point():
            value = value.to(target)  # on its own device: half the bytes to copy
        yield name, value


def on_host(shard: list[NamedTensor]) -> list[NamedTensor]:
    """The shard's tensors in this machine's memory: one copy from the GPU for all tensors of one type."""
    import torch

    if not shard[0][1].is_cuda or len({tensor.dtype for _, tensor in shard}) > 1:
        return [(name, tensor.to("cpu").contiguous()) for name, tensor in shard]
    together = torch.cat([tensor.reshape(-1) for _, tensor in shard])
    host = torch.empty(together.shape, dtype=together.dtype, pin_memory=True)  # torch keeps such memory for the next
    host.copy_(together)
    parts = host.split([tensor.numel() for _, tensor in shard])
    return [(name, part.view(tensor.shape)) for (name, tensor), part in zip(shard, parts, strict=True)]


def _write_files(draft: Draft, tensors: Iterator[NamedTensor], shard_bytes: int, part_bytes: int) -> None:
    writers = max(1, min(_MOST_WRITERS, usable_cpus() - 1))
    with ThreadPoolExecutor(writers, thread_name_prefix="staging") as pool:
        files = FileWriter(draft, pool, writers * _AHEAD, part_bytes)
        try:
            shards = (on_host(shard) for shard in _shards(tensors, shard_bytes))
            if draft.before is None:
                for shard in shards:
                    files.write(shard)
                layout = Layout(draft.folder, files.slices, files.finish())
            else:
                with ThreadPoolExecutor(writers, thread_name_prefix="comparing") as comparing:
                    layout = Sorting(draft.folder, draft.before, files, shard_bytes).run(shards, comparing)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if not files.slices:
        raise StagingError("the model has no parameters to send")
    draft.manifest.end(layout)


def _shards(tensors: Iterator[NamedTensor], limit: int) -> Iterator[list[NamedTensor]]:
    shard: list[NamedTensor] = []
    size = 0
    for name, tensor in tensors:
        shard.append((name, tensor))
        size += tensor.nbytes
        if size >= limit:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


class Sorting:
    """Tells the tensors of one version that changed since an earlier one from those that did not."""

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

    def run(self, shards: Iterable[list[NamedTensor]], pool: Executor) -> Layout:
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

    def _sort(self, shard: list[NamedTensor], same: list[bool]) -> None:
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


def _unbound(shard: list[NamedTensor], some: list[NamedTensor]) -> list[NamedTensor]:
    """`some` of a shard's tensors, copied where they would hold more memory than twice their own.

    Tensors from a GPU share one block, which a single one of them would hold until its file is written.
    """
    size = sum(tensor.nbytes for _, tensor in some)
    if not shard[0][1].is_pinned() or 2 * size >= sum(tensor.nbytes for _, tensor in shard):
        return some
    return [(name, tensor.clone()) for name, tensor in some]


class _Collector:
    """Tensors for the next file of one kind."""

    def __init__(self, write: Callable[[list[NamedTensor]], None], limit: int) -> None:
        self._write = write
        self._limit = limit
        self._waiting: list[NamedTensor] = []
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
