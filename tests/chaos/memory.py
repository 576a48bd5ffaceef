"""Whether a process takes ever more: memory and open files, at the beginning of its time and at the end."""

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
MORE_MEMORY, MORE_MB, MORE_FILES = 1.10, 10.0, 20.0
"""The last quarter may have so much more than the first: a share of it and MB; files."""
_LEAST_SAMPLES = 20


@dataclass(frozen=True)
class Sample:
    """What a process has at a moment: resident memory in MB (10^6 bytes), open files."""

    pid: int
    mb: float
    files: int


def sample(pid: int) -> Sample | None:
    """Reads it; None where there is no such process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return Sample(pid, pages * _PAGE / 1e6, len(os.listdir(f"/proc/{pid}/fd")))
    except (OSError, IndexError):
        return None


@dataclass(frozen=True)
class Growth:
    """Medians of the first and the last quarter of the last process's time."""

    samples: int
    first_mb: float
    last_mb: float
    most_mb: float
    first_files: float
    last_files: float

    @property
    def is_flat(self) -> bool:
        """Whether it grew by no more than it may. Of a short time nothing can be told."""
        return self.samples < _LEAST_SAMPLES or (
            self.last_mb <= self.first_mb * MORE_MEMORY + MORE_MB and self.last_files <= self.first_files + MORE_FILES
        )


def growth(samples: list[Sample]) -> Growth:
    """Of the process that was the last one, from its first fifth on: until then it starts."""
    last = [one for one in samples if one.pid == samples[-1].pid]
    last = last[len(last) // 5 :]
    quarter = max(1, len(last) // 4)

    def median(part: list[Sample], value: Callable[[Sample], float]) -> float:
        return statistics.median(map(value, part))

    return Growth(
        samples=len(last),
        first_mb=median(last[:quarter], lambda one: one.mb),
        last_mb=median(last[-quarter:], lambda one: one.mb),
        most_mb=max(one.mb for one in last),
        first_files=median(last[:quarter], lambda one: one.files),
        last_files=median(last[-quarter:], lambda one: one.files),
    )
