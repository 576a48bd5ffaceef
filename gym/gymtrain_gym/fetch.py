"""`python -m gymtrain_gym.fetch NAME...`: fetches datasets of run.json to the volume of spec.data.storage.

An init container of the preflight pod; NAME is train-0 for spec.data.train[0]. What is there already, and still what
the source has, stays. A file beside each dataset says what it is: source, version, size, time.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gymtrain_api.runs import parse_run_config
from gymtrain_api.sources import HubDataset, StoredObject, parse_data_source
from gymtrain_api.spec import Data
from gymtrain_api.wiring import FETCHED_DIR, RUN_CONFIG_FILE, TERMINATION_LOG
from gymtrain_gym.datasets import remote
from gymtrain_gym.errors import DatasetError, FetchError

EX_CONFIG = 78
REPORT_SECONDS = 10.0
STALL_SECONDS = 600.0  # without a byte; libraries have tried again by then


@dataclass
class Watch:
    """Says now and then how far it is, and ends a process that waits for nothing: a library's own limits may fail."""

    what: str
    size: int | None = None
    done: int = 0
    ended: bool = False

    def __post_init__(self) -> None:
        self._moved = time.monotonic()
        threading.Thread(target=self._run, daemon=True).start()

    def progress(self, done: int) -> None:
        self.done, self._moved = done, time.monotonic()

    def _run(self) -> None:
        while not self.ended:
            time.sleep(REPORT_SECONDS)
            if self.ended:
                return
            of = f" of {self.size / 1e6:.1f}" if self.size is not None else ""
            print(f"{self.what}: {self.done / 1e6:.1f}{of} MB", flush=True)
            if time.monotonic() - self._moved > STALL_SECONDS:
                say_why(f"{self.what}: nothing came for {STALL_SECONDS:.0f} s")
                os._exit(1)


def fetch(name: str, data: Data, folder: Path) -> None:
    """Fetches one dataset to `folder`/NAME.jsonl.

    Raises:
        DatasetError, FetchError: see remote.copy.
    """
    use, _, number = name.rpartition("-")
    dataset = getattr(data, use)[int(number)]
    source = parse_data_source(dataset.source)
    assert isinstance(source, HubDataset | StoredObject)
    file, note = folder / f"{name}.jsonl", folder / f"{name}.json"
    started, watch = time.monotonic(), Watch(dataset.source)
    try:
        there = remote.open_remote(source, os.environ)
        version = remote.look(there)
        known = {"source": dataset.source, "version": version.name}
        if version.name and file.exists() and known.items() <= _read(note).items():
            print(f"{dataset.source} is already there, {file.stat().st_size / 1e6:.1f} MB", flush=True)
            return
        note.unlink(missing_ok=True)  # from here on the file is of no known version
        watch.size = version.size
        watch.progress(0)
        remote.copy(there, version, file, watch.progress)
    finally:
        watch.ended = True
    size = file.stat().st_size
    partial = note.with_suffix(".partial")
    partial.write_text(json.dumps({**known, "bytes": size, "fetched": int(time.time())}))
    os.replace(partial, note)
    print(f"fetched {dataset.source}: {size / 1e6:.1f} MB in {time.monotonic() - started:.1f} s", flush=True)


def _read(note: Path) -> dict[str, Any]:
    try:
        found = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def say_why(message: str) -> None:
    """Prints why it failed, and leaves it to the operator."""
    print(f"gymtrain: {message}", file=sys.stderr, flush=True)
    try:
        Path(TERMINATION_LOG).write_text(message[:4096])
    except OSError:
        return  # outside of a pod


def main(names: Sequence[str], run_file: Path = Path(RUN_CONFIG_FILE), folder: Path = Path(FETCHED_DIR)) -> int:
    """Reads run.json and fetches the datasets that `names` name."""
    try:
        data = parse_run_config(run_file.read_bytes()).spec.data
    except (OSError, ValidationError) as error:
        say_why(f"{run_file} can't be used: {error}")
        return EX_CONFIG
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for name in names:
        use, _, number = name.rpartition("-")
        try:
            fetch(name, data, folder)
        except (DatasetError, FetchError) as error:
            say_why(f"spec.data.{use}[{number}].source: {getattr(data, use)[int(number)].source}: {error}")
            return EX_CONFIG if isinstance(error, DatasetError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
