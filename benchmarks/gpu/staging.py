"""Where HTTPFull's staging spends its time: a model's weights from a GPU to files in memory, with no pod that fetches.

    PYTHONPATH=api:tracing:trainer:. python3 -m benchmarks.gpu.staging [--size 4] [--versions 4]

Cases, each with several numbers of writing threads and sizes of files and parts:

  host    the weights come to the machine's memory, and go nowhere
  files   ... and are written to files, not hashed
  hashed  ... and hashed: what the product does

All weights change between versions. Prints a line of JSON a case: seconds of each version after the two that make the
files, and GB/s of the fastest.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from dev.gpu import small_model
from gymtrain_trainer.weights.store import safetensors_files, staging
from gymtrain_trainer.weights.store.weight_store import WeightStore

_MIB = 1 << 20
_FIRST = 2  # versions that make the files: later ones write into those that are there
_LABEL = "demo:1:1"


@dataclass(frozen=True)
class Setting:
    """What a case is measured with; sizes in MiB."""

    writers: int
    shard: int
    part: int


AS_IS = Setting(staging._MOST_WRITERS, staging.SHARD_BYTES // _MIB, staging.PART_BYTES // _MIB)
OTHERS = (
    Setting(4, AS_IS.shard, AS_IS.part),
    Setting(16, AS_IS.shard, AS_IS.part),
    Setting(AS_IS.writers, 128, AS_IS.part),
    Setting(AS_IS.writers, AS_IS.shard, 2),
    Setting(16, 128, AS_IS.part),
)


class _NoHash:
    """Stands in for blake3."""

    def update(self, _: memoryview) -> None:
        """Does nothing."""

    def hexdigest(self) -> str:
        """Of nothing."""
        return "0" * 64


def versions(model: Any, number: int, write: Callable[[int, Iterator[staging.NamedTensor]], None]) -> list[float]:
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


def to_host(setting: Setting) -> Callable[[int, Iterator[staging.NamedTensor]], None]:
    """Writes nothing."""

    def write(_: int, tensors: Iterator[staging.NamedTensor]) -> None:
        for shard in staging._shards(staging._cast(tensors, "bfloat16"), setting.shard * _MIB):
            staging.on_host(shard)

    return write


def to_files(store: WeightStore, setting: Setting) -> Callable[[int, Iterator[staging.NamedTensor]], None]:
    """As the product does."""

    def write(version: int, tensors: Iterator[staging.NamedTensor]) -> None:
        with patch.object(staging, "_MOST_WRITERS", setting.writers):
            draft = store.begin(version, _LABEL)
            staging.stage(draft, tensors, "bfloat16", setting.shard * _MIB, setting.part * _MIB)

    return write


def main() -> int:
    """Measures each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size", choices=small_model.SHAPES, default="4", help="of the model, in billions of parameters"
    )
    parser.add_argument("--versions", type=int, default=4)
    parser.add_argument("--folder", default="/dev/shm", help="where to stage (%(default)s)")  # noqa: S108 - memory
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        kind, shape = small_model.SHAPES[options.size]
        model = small_model.make_model(folder / "model", shape, kind, weights=False)
        size = sum(parameter.nbytes for parameter in model.parameters())
        for setting in (AS_IS, *OTHERS):
            for case in ("host", "files", "hashed"):
                print(json.dumps(_measured(case, setting, model, options.versions, folder, size)), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _measured(case: str, setting: Setting, model: Any, number: int, folder: Path, size: int) -> dict[str, Any]:
    if case == "host":
        seconds = versions(model, number, to_host(setting))
    else:
        store = WeightStore(folder / "staged")
        unhashed = patch.object(safetensors_files, "blake3", _NoHash) if case == "files" else nullcontext()
        try:
            with unhashed:
                seconds = versions(model, number, to_files(store, setting))
        finally:
            store.clear()
    found = {"case": case, "writers": setting.writers, "file_mib": setting.shard, "part_mib": setting.part}
    return found | {"bytes": size, "seconds": seconds, "gb_per_s": round(size / min(seconds) / 1e9, 2)}


if __name__ == "__main__":
    raise SystemExit(main())
