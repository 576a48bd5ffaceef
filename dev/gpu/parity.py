"""The parity check of a sharded model over NCCL: vLLM on the first GPU, one rank of TRL's trainer on each other one.

    PYTHONPATH=api:tracing:trainer:inference python3 -m dev.gpu.parity [--ranks 1] [--size 0.1]

One rank needs two GPUs, and FSDP shards its model all the same, over a group of one; two ranks need three GPUs. Needs
torch, transformers, vLLM 0.25 or later and TRL 1.16. As at the start of a run, TRL syncs once and the check follows:
first with all layers exchanged for noise on their way (`wrong`), then with all as they are (`right`). Prints one line
of JSON with what each rank found (dev/gpu/parity_rank.py), and ends with 0 where the wrong weights were refused on all
ranks, the right ones on none, and no parameter was left gathered.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[2])
os.environ["CUDA_VISIBLE_DEVICES"] = "1"  # before torch looks
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from benchmarks.shapes import LLAMA_06B, SMOLLM2_135M
from dev.gpu import small_model
from dev.gpu.vllm_server import NO_MULTICAST, end_on_sigterm, free_port, serving

_SHAPES = {"0.1": SMOLLM2_135M, "0.6": LLAMA_06B}  # billions of parameters
_NOISE = "layers."  # part of the names of what is exchanged
_CACHE_BYTES = 2 << 30
_RANK_SECONDS = 200.0
_LOG_CHARACTERS = 3000


def main() -> int:
    """Serves the model with vLLM, and runs the ranks twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--size", choices=_SHAPES, default="0.1", help="of the model")
    options = parser.parse_args()
    os.environ.update(NO_MULTICAST)
    end_on_sigterm()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        work = Path(folder)
        model = small_model.make_model(work / "model", _SHAPES[options.size])
        results: dict[str, Any] = {
            "gpu": torch.cuda.get_device_name(),
            "model_bytes": 4 * sum(parameter.numel() for parameter in model.parameters()),  # in float32, as trained
        }
        del model
        torch.cuda.empty_cache()
        log, transfer = work / "vllm.log", '--weight-transfer-config={"backend":"nccl"}'
        # Of a named size: vLLM would else measure what is free, which fails where others come and go on the GPU.
        cache = f"--kv-cache-memory-bytes={_CACHE_BYTES}"
        with serving(work / "model", log, transfer, cache, "--load-format=dummy") as port:
            wrong = results["wrong"] = run_ranks(work, options.ranks, port, _NOISE)
            right = results["right"] = run_ranks(work, options.ranks, port, "")
    results["as_expected"] = (
        all(str(rank.get("error")).startswith("WeightParityError") for rank in wrong)
        and all(rank.get("error", "no result") is None for rank in right)
        and all(rank.get("gathered") == [] for rank in wrong + right)
    )
    print(json.dumps(results), flush=True)
    return 0 if results["as_expected"] else 1


def run_ranks(work: Path, ranks: int, port: int, noise: str) -> list[dict[str, Any]]:
    """What each rank found, or the end of its log where it found nothing."""
    devices = ",".join(str(rank + 1) for rank in range(ranks))
    shared = os.environ | {
        "CUDA_VISIBLE_DEVICES": devices,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    command = [sys.executable, "-m", "dev.gpu.parity_rank", str(work), str(port), noise]
    logs = [work / f"rank-{rank}.log" for rank in range(ranks)]
    processes = []
    try:
        for rank, log in enumerate(logs):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with log.open("wb") as output:
                processes.append(subprocess.Popen(command, env=shared | own, stdout=output, stderr=subprocess.STDOUT))
        for process in processes:
            process.wait(_RANK_SECONDS)
    except subprocess.TimeoutExpired:
        pass  # the logs say how far it came
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [_result(log) for log in logs]


def _result(log: Path) -> dict[str, Any]:
    text = log.read_text(errors="replace")
    lines = [line for line in text.splitlines() if line.startswith('{"rank"')]
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {"log": text[-_LOG_CHARACTERS:]}
    return found


if __name__ == "__main__":
    sys.exit(main())
