"""Files in memory that a GPU reads by itself, at the full speed of its bus and without a thread of this process.

To let a GPU read memory costs as much as to copy it several times, so it is done once: later versions are written into
the same files (`gymtrain_api.spare_files`), and what a GPU reads of them is what was written last. That holds as long
as a file keeps its size: what is cut off is given back, and the GPU would go on to read that. No file is ever cut.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger("vllm.gymtrain")

_MEMORY = Path("/dev/shm")  # noqa: S108 - where a version's folder is, if it has room
_THREADS = 8  # that ask for it side by side: 8 GB in 1.4 to 1.8 s

type _File = tuple[int, int, int]  # device, number and size: no other file has them while this one is mapped


@dataclass(frozen=True)
class Registration:
    """How memory becomes a GPU's to read. Raises RuntimeError where it can't."""

    begin: Callable[[torch.Tensor], None]
    end: Callable[[torch.Tensor], None]


def registration(device: torch.device) -> Registration | None:
    """For one GPU, whatever thread asks; None for a CPU."""
    if device.type != "cuda":
        return None

    def call(function: Callable[..., Any], *arguments: Any) -> None:
        with torch.cuda.device(device):
            if code := int(function(*arguments)):
                raise RuntimeError(f"{function.__name__}: CUDA error {code}")

    runtime: Any = torch.cuda.cudart()
    return Registration(
        lambda memory: call(runtime.cudaHostRegister, memory.data_ptr(), memory.nbytes, 0),
        lambda memory: call(runtime.cudaHostUnregister, memory.data_ptr()),
    )


class PinnedFiles:
    """Those of one version at most, from one version to the next."""

    def __init__(self, registration: Registration | None, place: Path = _MEMORY) -> None:
        """
        Args:
            registration: of memory; None: nothing is held.
            place: folder whose files are memory; others are not held.
        """
        self._registration = registration
        self._place = place
        self._held: dict[_File, torch.Tensor] = {}
        self._lock = threading.Lock()  # of all changes
        self._refused = False  # by the driver: it is not asked again

    def hold(self, files: Sequence[Path]) -> None:
        """Holds these, as far as they are in memory, and no others any more. Nobody may be reading any."""
        registration = self._registration
        if registration is None:
            return
        with self._lock:
            wanted = {} if self._refused else dict(self._in_memory(files))
            for known in self._held.keys() - wanted.keys():
                registration.end(self._held.pop(known))
            new = {known: file for known, file in wanted.items() if known not in self._held}
            if new:
                with ThreadPoolExecutor(_THREADS, thread_name_prefix="pinning") as pool:
                    made = pool.map(lambda known: self._begin(registration, new[known], known[2]), new)
                    self._held |= {known: memory for known, memory in zip(new, made, strict=True) if memory is not None}

    def tensor(self, file: Path) -> torch.Tensor | None:
        """The bytes of a file that is held, where the GPU reads them."""
        return self._held.get(_known(file.stat()))

    def memory(self, file: Path) -> memoryview | None:
        """The same, to write to."""
        found = self.tensor(file)
        return None if found is None else memoryview(found.numpy())

    def _in_memory(self, files: Sequence[Path]) -> list[tuple[_File, Path]]:
        return [(_known(file.stat()), file) for file in files if file.resolve().is_relative_to(self._place)]

    def _begin(self, registration: Registration, file: Path, size: int) -> torch.Tensor | None:
        if self._refused:
            return None
        try:
            memory = torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8)
            registration.begin(memory)
        except RuntimeError as error:
            self._refused = True
            logger.warning("the GPU can't read files by itself, so weights load more slowly: %s", error)
            return None
        return memory


def _known(found: os.stat_result) -> _File:
    return found.st_dev, found.st_ino, found.st_size
