"""How fast a pod's files come to its GPU while it is paused: safetensors files in memory, read as vLLM's plugin does.

    PYTHONPATH=api:tracing:trainer:inference:. python3 -m benchmarks.gpu.loading [--gigabytes 8] [--loads 5]

Each line of JSON is a way: the GPU reads the files by itself (with the seconds of making them its to read, once), or so
many threads read them in steps of some size. Seconds of each load after one that takes the memory, and GB/s of the
fastest. Every tensor is copied to another place, as to a model's own. Needs no vLLM.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from gymtrain_vllm import tensors
from gymtrain_vllm.pinned_files import PinnedFiles, registration

_MIB = 1 << 20
_FILE = 32 * _MIB  # half of what the trainer makes, as when this was recorded
_ROWS = 4096
AS_IS = (tensors._READERS, tensors._STEP // _MIB)
OTHERS = ((8, 2), (8, 4), (8, 16), (8, 32), (12, 8), (14, 8), (14, 4), (4, 8))


def main() -> int:
    """Measures each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--loads", type=int, default=5)
    parser.add_argument("--folder", default="/dev/shm", help="where the files lie (%(default)s)")  # noqa: S108 - memory
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        files = _files(Path(folder), int(options.gigabytes * 1e9))
        for setting in (None, AS_IS, *OTHERS):
            print(json.dumps(_measured(setting, files, device, options.loads)), flush=True)
    return 0


def _measured(setting: tuple[int, int] | None, files: list[Path], device: torch.device, loads: int) -> dict[str, Any]:
    """None: the GPU reads by itself."""
    found: dict[str, Any] = {"bytes": sum(file.stat().st_size for file in files)}
    place = torch.empty(2 * _FILE, dtype=torch.uint8, device=device)
    pinned = PinnedFiles(registration(device) if setting is None else None)
    began = time.monotonic()
    pinned.hold(files)
    if setting is None:
        found["pinned_in"] = round(time.monotonic() - began, 4)
    readers, step = setting or AS_IS
    with patch.multiple(tensors, _READERS=readers, _STEP=step * _MIB):
        seconds = [_load(files, device, pinned, place) for _ in range(loads + 1)][1:]
    pinned.hold(())
    if setting is not None:
        found |= {"readers": readers, "step_mib": step}
    return found | {"seconds": seconds, "gb_per_s": round(found["bytes"] / min(seconds) / 1e9, 2)}


def _files(folder: Path, size: int) -> list[Path]:
    from gymtrain_trainer.weights.store.safetensors_files import write_file

    files = []
    shape = (_ROWS, _FILE // 4 // _ROWS // 2)
    for number in range(size // _FILE):
        files.append(folder / f"{number:05}.safetensors")
        write_file(files[-1], [(f"{number}.{part}", torch.ones(shape, dtype=torch.bfloat16)) for part in range(4)])
    return files


def _load(files: list[Path], device: torch.device, pinned: PinnedFiles, place: torch.Tensor) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.monotonic()
    for _, tensor in tensors.read_tensors(files, device, pinned):
        place[: tensor.nbytes].copy_(tensor.view(torch.uint8).reshape(-1))
    if device.type == "cuda":
        torch.cuda.synchronize()
    return round(time.monotonic() - began, 4)


if __name__ == "__main__":
    raise SystemExit(main())
