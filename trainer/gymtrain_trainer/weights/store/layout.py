"""Where each tensor of a staged version lies, so that the next version can tell what is still the same.

The bytes themselves are compared: a tensor that takes no gradient may change all the same (an adapter is merged into
frozen weights before they are sent), and by ways that torch's counters of writes don't see. A tensor that did change
costs one look, as its first bytes differ already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymtrain_api.manifest import WeightPart

if TYPE_CHECKING:  # torch takes seconds to import, and only the trainer's process has it
    import torch

_FIRST_LOOK = 4 << 10  # bytes
_STEP = 1 << 20


@dataclass(frozen=True)
class TensorSlice:
    """The bytes of one tensor."""

    file: str
    offset: int
    size: int
    dtype: str  # such as bfloat16
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """One staged version.

    Attributes:
        folder: of its files.
        slices: by tensor.
        settled: the parts of each file that holds settled tensors alone: those that are not written again.
        unchanged: tensors that are what they were in the version before, settled ones included.
        fickle: modules of which a tensor changed after it had settled: theirs don't settle again.
    """

    folder: Path
    slices: Mapping[str, TensorSlice]
    settled: Mapping[str, tuple[WeightPart, ...]] = field(default_factory=dict)
    unchanged: frozenset[str] = frozenset()
    fickle: frozenset[str] = frozenset()

    def steady(self) -> frozenset[str]:
        """Tensors to settle, if they are the same once more: of modules in which nothing changed.

        vLLM fuses tensors of one module into one layer, and holds those that came until it has all of them.
        """
        moving = {module_of(name) for name in self.slices.keys() - self.unchanged} | self.fickle
        return frozenset(name for name in self.unchanged if module_of(name) not in moving)


def module_of(name: str) -> str:
    """In a layer the module above a tensor's own one: `model.layers.0.mlp` of `model.layers.0.mlp.up_proj.weight`."""
    module = name.rpartition(".")[0]
    above = module.rpartition(".")[0]
    return above if any(word.isdecimal() for word in above.split(".")) else module


class Earlier:
    """Reads the files of a staged version. From any thread."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._files: dict[str, Any] = {}

    def same(self, name: str, tensor: torch.Tensor) -> bool:
        """Whether a contiguous CPU tensor is what it was.

        Raises:
            OSError: the file can't be read.
        """
        import numpy
        import torch

        piece = self.layout.slices.get(name)
        if piece is None or (piece.dtype, piece.shape) != (dtype_of(tensor), tuple(tensor.shape)) or not piece.size:
            return False
        now, then = tensor.reshape(-1).view(torch.uint8).numpy(), self._bytes(piece)
        begin, end = 0, min(_FIRST_LOOK, piece.size)
        while begin < end:
            if not numpy.array_equal(now[begin:end], then[begin:end]):
                return False
            begin, end = end, min(end + _STEP, piece.size)
        return True

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as it was: a view of the file.

        Raises:
            OSError: the file can't be read.
        """
        import torch

        piece = self.layout.slices[name]
        dtype: torch.dtype = getattr(torch, piece.dtype)
        memory = torch.from_numpy(self._bytes(piece))
        if piece.offset % dtype.itemsize:  # behind a tensor of a smaller type
            memory = memory.clone()
        return memory.view(dtype).view(piece.shape)

    def _bytes(self, piece: TensorSlice) -> Any:
        import numpy

        file = self._files.get(piece.file)
        if file is None:
            # Copy on write: torch warns of memory that it may not write to.
            file = numpy.memmap(self.layout.folder / piece.file, dtype=numpy.uint8, mode="c")
            self._files[piece.file] = file
        return file[piece.offset : piece.offset + piece.size]


def dtype_of(tensor: torch.Tensor) -> str:
    """Name of its type."""
    return str(tensor.dtype).removeprefix("torch.")
