"""Where HTTPFull's time goes before a pod loads: a model's weights from a GPU, or from this machine's memory, to files
in memory, and from there by HTTP to a process that fetches as vLLM's plugin does. Needs no vLLM.

    PYTHONPATH=api:tracing:trainer:inference:. python3 -m benchmarks.gpu.staging [--size 4] [--versions 4]

Cases, each with several numbers of writing threads and sizes of files and parts:

  host     the weights come to the machine's memory, and go nowhere
  files    ... and are written to files, not hashed
  hashed   ... and hashed: what the trainer does
  fetched  ... while the other process fetches them: what decides in a sync

All weights change between versions. Prints a line of JSON a case: seconds of each version after the two that make the
files, and GB/s of the fastest; of `fetched` also the CPU seconds of the fetching process for the last version.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from dev.gpu import small_model
from dev.gpu.older_versions import allow_older_python
from dev.gpu.subjects import serve_weights
from gymtrain_api.manifest import MANIFEST_FILE, PullUpdate
from gymtrain_trainer.weights import WeightStore
from gymtrain_trainer.weights.store import safetensors_files, staging

_MIB = 1 << 20
_FIRST = 2  # versions that make the files: later ones write into those that are there
_SECONDS = 120.0  # of a fetch
_FETCHES = """
import json, sys, time
import torch
from gymtrain_api.manifest import PullUpdate
from gymtrain_vllm.fetch import BackgroundFetch
from gymtrain_vllm.pinned_files import PinnedFiles, Registration, registration

nothing = Registration(lambda memory: None, lambda memory: None)
on_gpu = torch.cuda.is_available()
background = BackgroundFetch(held=PinnedFiles(registration(torch.device("cuda")) if on_gpu else nothing))
background.reuses = True
try:
    for line in sys.stdin:
        update, cpu = PullUpdate.model_validate_json(line), time.process_time()
        background.begin(update)
        background.done_with(background.files(update))
        print(time.process_time() - cpu, flush=True)
finally:
    background.close()
"""

type Write = Callable[[int, Iterator[staging.NamedTensor]], None]  # of a version's tensors


def _label(version: int) -> str:
    return f"demo:1:{version}"


@dataclass(frozen=True)
class Setting:
    """What a case is measured with; sizes in MiB."""

    writers: int
    shard: int
    part: int

    @property
    def ahead(self) -> int:
        """Parts that wait for each writer, of the same bytes as the product's."""
        return max(1, staging._AHEAD * staging.PART_BYTES // (self.part * _MIB))


CASES = ("host", "files", "hashed", "fetched")
AS_IS = Setting(staging._MOST_WRITERS, staging.SHARD_BYTES // _MIB, staging.PART_BYTES // _MIB)
OTHERS = (
    Setting(AS_IS.writers, 32, 8),  # until 2026-11-28
    Setting(AS_IS.writers, 32, 32),  # until 2026-11-29
    Setting(12, AS_IS.shard, AS_IS.part),
)


class _NoHash:
    """Stands in for blake3."""

    def update(self, _: memoryview) -> None:
        """Does nothing."""

    def hexdigest(self) -> str:
        """Of nothing."""
        return "0" * 64


def versions(model: Any, number: int, write: Write) -> list[float]:
    """Seconds of each version but the first two."""
    seconds = []
    for version in range(1, _FIRST + number + 1):
        small_model.change(model)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        began = time.monotonic()
        write(version, iter(model.named_parameters()))
        seconds.append(round(time.monotonic() - began, 4))
    return seconds[_FIRST:]


def to_host(setting: Setting) -> Write:
    """Writes nothing."""

    def write(_: int, tensors: Iterator[staging.NamedTensor]) -> None:
        for shard in staging._shards(staging._cast(tensors, "bfloat16"), setting.shard * _MIB):
            staging.on_host(shard)

    return write


def to_files(store: WeightStore, setting: Setting) -> Write:
    """As the trainer does."""

    def write(version: int, tensors: Iterator[staging.NamedTensor]) -> None:
        with patch.multiple(staging, _MOST_WRITERS=setting.writers, _AHEAD=setting.ahead):
            draft = store.begin(version, _label(version))
            staging.stage(draft, tensors, "bfloat16", setting.shard * _MIB, setting.part * _MIB)

    return write


class Pod:
    """A process that fetches as vLLM's plugin does, from this one's HTTP server."""

    def __init__(self, store: WeightStore) -> None:
        self._port = serve_weights(store)
        self.cpu_seconds = 0.0  # of the last fetch
        self._process = subprocess.Popen(
            [sys.executable, "-c", _FETCHES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def fetching(self, write: Write) -> Write:
        """`write`, while the pod fetches; returns when it has everything."""

        def both(version: int, tensors: Iterator[staging.NamedTensor]) -> None:
            with ThreadPoolExecutor(1) as pool:
                fetches: list[Future[float]] = []

                def begun() -> Iterator[staging.NamedTensor]:  # once the version is there to be asked for
                    fetches.append(pool.submit(self._fetch, version))
                    yield from tensors

                write(version, begun())
                self.cpu_seconds = fetches[0].result(_SECONDS)

        return both

    def _fetch(self, version: int) -> float:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        url = f"http://127.0.0.1:{self._port}/weights/{version}/{MANIFEST_FILE}"
        update = PullUpdate(manifest_url=url, version=_label(version), timeout_seconds=_SECONDS)
        stdin.write(update.model_dump_json() + "\n")
        stdin.flush()
        return float(stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(_SECONDS)


def main() -> int:
    """Measures each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size", choices=small_model.SHAPES, default="4", help="of the model, in billions of parameters"
    )
    parser.add_argument("--versions", type=int, default=4)
    parser.add_argument("--folder", default="/dev/shm", help="where to stage (%(default)s)")  # noqa: S108 - memory
    options = parser.parse_args()
    allow_older_python()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        kind, shape = small_model.SHAPES[options.size]
        model = small_model.make_model(folder / "model", shape, kind, weights=False)
        size = sum(parameter.nbytes for parameter in model.parameters())
        for setting in (AS_IS, *OTHERS):
            for case in CASES:
                print(json.dumps(_measured(case, setting, model, options.versions, folder, size)), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _measured(case: str, setting: Setting, model: Any, number: int, folder: Path, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {"case": case, "writers": setting.writers, "file_mib": setting.shard}
    found |= {"part_mib": setting.part, "bytes": size}
    store = WeightStore(folder / "staged")
    try:
        match case:
            case "host":
                seconds = versions(model, number, to_host(setting))
            case "files":
                with patch.object(safetensors_files, "blake3", _NoHash):
                    seconds = versions(model, number, to_files(store, setting))
            case "hashed":
                seconds = versions(model, number, to_files(store, setting))
            case _:
                with closing(Pod(store)) as pod:
                    seconds = versions(model, number, pod.fetching(to_files(store, setting)))
                    found["pod_cpu_seconds"] = round(pod.cpu_seconds, 2)
    finally:
        store.clear()
    return found | {"seconds": seconds, "gb_per_s": round(size / min(seconds) / 1e9, 2)}


if __name__ == "__main__":
    raise SystemExit(main())
