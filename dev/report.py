"""What the user sees: one line a step with the elapsed time, and errors that say what to do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

_TAIL_LINES = 15


class DevError(Exception):
    """Something that the user has to know: what failed, how to fix it, and where the log is."""

    def __init__(self, what: str, *, fix: str = "", log: Path | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.log = log

    def render(self) -> str:
        """The whole message, with the log's last lines: most failures are told there."""
        lines = [f"error: {self.what}"]
        if self.log is not None:
            lines.append(f"  log: {self.log}")
            lines += [f"    | {line}" for line in tail(self.log, _TAIL_LINES)]
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


def tail(path: Path, count: int) -> list[str]:
    """The last lines of a log that may be missing or hold anything."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16384))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


_started = time.monotonic()


def say(message: str) -> None:
    """One line of progress. Standard error, so that `kubeconfig` and `leftovers` keep stdout for themselves."""
    print(f"[{time.monotonic() - _started:4.0f}s] {message}", file=sys.stderr, flush=True)


@contextmanager
def step(message: str) -> Generator[None]:
    """Say what starts, and how long it took if that was noticeable."""
    say(f"{message} …")
    started = time.monotonic()
    yield
    took = time.monotonic() - started
    if took >= 1:
        say(f"{message}: {took:.1f} s")


def wait_until(what: str, ready: Callable[[], str], *, deadline: float, fix: str = "", log: Path | None = None) -> None:
    """Poll until the probe returns an empty string; what it says otherwise ends up in the error."""
    end = time.monotonic() + deadline
    pause = 0.05
    while answer := ready():
        if time.monotonic() > end:
            raise DevError(f"{what}: not within {deadline:.0f} s; last answer: {answer}", fix=fix, log=log)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)
