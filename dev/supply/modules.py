"""Fetching Go modules while something else is compiled: the compiler leaves the network idle."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dev.shell import end_group, environment
from dev.supply.toolchain import Go

_DEADLINE = 900


@contextmanager
def fetched_ahead(go: Go, packages: Mapping[Path, Sequence[str]], log: Path) -> Generator[None]:
    """Fetch what the packages of each folder need, one folder after the other, until the block ends.

    Nothing depends on it: what is missing, the build itself fetches, and says why where it can't.
    """
    stop = threading.Event()
    thread = threading.Thread(target=_fetch, args=(go, packages, log, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _fetch(go: Go, packages: Mapping[Path, Sequence[str]], log: Path, stop: threading.Event) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        for folder, names in packages.items():
            if stop.is_set():
                return
            process = subprocess.Popen(
                ["nice", "-n", "15", str(go.program), "list", "-deps", "-f", "{{.ImportPath}}", *names],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                env=environment(go.env | {"CGO_ENABLED": "0"}),
                cwd=folder,
                start_new_session=True,
            )
            end = time.monotonic() + _DEADLINE
            while process.poll() is None:
                if stop.wait(0.2) or time.monotonic() > end:
                    end_group(process.pid)
                    process.wait()
