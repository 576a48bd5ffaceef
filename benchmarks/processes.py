"""Processes of benchmarks: memory and CPU, from /proc, and their end."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PARENT, _USER, _SYSTEM, _RESIDENT = 1, 11, 12, 21  # places after the name in /proc/PID/stat


@dataclass(frozen=True)
class Usage:
    """What a process takes.

    Attributes:
        cpu: seconds since its start, of all its threads.
        resident: bytes of memory. Pages that processes share count for each of them.
    """

    cpu: float = 0.0
    resident: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.cpu + other.cpu, self.resident + other.resident)


@contextlib.contextmanager
def ended_after[T: (str, bytes)](running: subprocess.Popen[T], seconds: float = 10.0) -> Iterator[subprocess.Popen[T]]:
    """Ends it with the block: asks, and kills it where it hasn't ended within `seconds`."""
    try:
        yield running
    finally:
        running.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(seconds)
        running.kill()
        running.wait()


def usage(pid: int) -> Usage:
    """Of one process.

    Raises:
        OSError: there is none.
    """
    return _usage(_stat(Path(f"/proc/{pid}/stat")))


def main_thread(pid: int) -> Usage:
    """Of the process' first thread; the memory is the whole process'."""
    return _usage(_stat(Path(f"/proc/{pid}/task/{pid}/stat")))


def descendants(pid: int) -> Usage:
    """Of all processes that this one has begun, that those have begun, and so on, as far as they still run."""
    return sum((_usage(fields) for _, fields in _descendants(pid)), Usage())


def busiest_threads(pid: int) -> dict[str, float]:
    """CPU seconds of the busiest thread of each of those processes, by number and name: "7 gymtrain_gateway".

    A thread that runs all the time is what a Python process can do, however many cores there are.
    """
    found: dict[str, float] = {}
    for one, _ in _descendants(pid):
        with contextlib.suppress(OSError):  # it ended meanwhile
            threads = [_usage(_stat(folder / "stat")).cpu for folder in Path(f"/proc/{one}/task").iterdir()]
            found[f"{one} {_name(one)}"] = max(threads, default=0.0)
    return found


def _descendants(pid: int) -> list[tuple[int, list[str]]]:
    children: dict[int, list[tuple[int, list[str]]]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = _stat(folder / "stat")
            except OSError:  # it ended meanwhile
                continue
            children.setdefault(int(fields[_PARENT]), []).append((int(folder.name), fields))
    found: list[tuple[int, list[str]]] = []
    left = [pid]
    while left:
        begun = children.get(left.pop(), [])
        found += begun
        left += [child for child, _ in begun]
    return found


def _name(pid: int) -> str:
    """The module that Python runs, or what the process calls itself."""
    words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    return words[words.index("-m") + 1] if "-m" in words[:-1] else Path(words[0]).name


def open_files(pid: int) -> int:
    """How many the process has."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def _stat(path: Path) -> list[str]:
    """The fields after the name, which may hold anything."""
    return path.read_text().rpartition(")")[2].split()


def _usage(fields: list[str]) -> Usage:
    cpu = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS
    return Usage(cpu, int(fields[_RESIDENT]) * _PAGE)
