"""HTTPFull against what no transport could avoid: one plain copy of the bytes plus vLLM's own loading of them.

    python -m benchmarks.http_full [--sizes 0.1 0.6] [--syncs 5]

Runs in one container of the trainer-tests image, which has torch, vLLM and the plugin: starts vLLM for a model of
SmolLM2-135M's or Qwen3-0.6B's shape with random weights, sends all weights a few times, and takes vLLM's own share
from its log. One line of JSON for each size.
"""

import argparse
import contextlib
import json
import os
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from benchmarks.shapes import SMOLLM2_135M
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import RunConfig
from gymtrain_trainer.serve import HttpServer, sending_threads
from gymtrain_trainer.weights import HTTPFull, SyncSettings, WeightStore, WeightSync, weight_routes

_PORT, _OWN_PORT = 8117, 8118
_START_SECONDS = 300.0
_TIMES = re.compile(r"waited ([\d.]+) s for the last files, loaded in ([\d.]+) s")
_SHAPES: dict[str, Any] = {
    "0.1": LlamaConfig(**SMOLLM2_135M, max_position_embeddings=512),
    "0.6": Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    ),
}


def _spec() -> GymTrainingRunSpec:
    return GymTrainingRunSpec.model_validate(
        {
            "model": {"source": "pvc://model/x", "dtype": "bfloat16"},
            "gym": {"configPaths": ["x"]},
            "data": {"train": [{"source": "gym://x"}]},
            "inference": {"args": ["--max-model-len=256"]},
        }
    )


def _build_tokenizer() -> Any:
    """Any one: vLLM doesn't start without, and nothing is generated."""
    build = runpy.run_path(str(Path(__file__).parents[1] / "images" / "model-tiny" / "build.py"))
    return build["build_tokenizer"]()


@contextlib.contextmanager
def serving(root: Path, log: Path) -> Iterator[int]:
    """vLLM as its pods run it, with the model in ROOT/model; its first process.

    Raises:
        RuntimeError: it doesn't come up.
    """
    run = RunConfig(
        name="bench",
        namespace="bench",
        spec=_spec(),
        inference_url="http://127.0.0.1",
        inference_pods_host="127.0.0.1",
        trainer_host="127.0.0.1",
    )
    (root / "run.json").write_text(run.model_dump_json(by_alias=True))
    (root / "scratch").mkdir()
    places = {
        "GYMTRAIN_RUN_CONFIG": str(root / "run.json"),
        "GYMTRAIN_ROOT": str(root),
        "GYMTRAIN_INFERENCE_PORT": str(_PORT),
    }
    with log.open("wb") as output:
        command = [sys.executable, "-m", "gymtrain_vllm.serve"]
        process = subprocess.Popen(command, env=os.environ | places, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait(process, log)
        yield process.pid
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/health", timeout=5):
            return
        time.sleep(0.5)
    raise RuntimeError(f"vLLM did not come up: {log.read_text(errors='replace')[-3000:]}")


def _cpu_seconds(first: int) -> float:
    """Of a process and those that it started."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12]) if first in (int(stat.parent.name), int(fields[1])) else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def _copy_seconds(store: Path) -> float:
    """A plain copy of the newest version's files, in memory."""
    newest = max((path for path in store.glob("*") if path.name.isdigit()), key=lambda path: int(path.name))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as target:
        started = time.monotonic()
        for file in newest.glob("*.safetensors"):
            shutil.copyfile(file, Path(target) / file.name)
        return time.monotonic() - started


def measure(size: str, syncs: int) -> dict[str, Any]:
    """The figures of one size."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        root, log = Path(folder), Path(folder) / "vllm.log"
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(_SHAPES[size], dtype=torch.float32)
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(root / "model")
        _build_tokenizer().save_pretrained(root / "model")
        store = WeightStore(root / "staged")

        def app() -> web.Application:
            made = web.Application()
            made.add_routes(weight_routes(store))
            return made

        server = HttpServer(app, _OWN_PORT, sending_threads())
        server.start()
        settings = SyncSettings(
            run="bench",
            attempt=1,
            pods_host="127.0.0.1",
            weights_url=f"http://127.0.0.1:{_OWN_PORT}/weights",
            pods_port=_PORT,
        )
        found: list[dict[str, float]] = []
        with serving(root, log) as first:
            transfer = WeightSync.over(settings, HTTPFull(store, dtype="bfloat16"))
            transfer.init_weight_transfer()
            for number in range(syncs + 1):
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(0.99)
                started, used = time.monotonic(), (time.process_time(), _cpu_seconds(first))
                transfer.pause()
                transfer.send_weights(iter(model.named_parameters()))
                transfer.resume()
                seconds, stats = time.monotonic() - started, transfer.stats
                trainer, vllm = time.process_time() - used[0], _cpu_seconds(first) - used[1]
                waited, loaded = map(float, _TIMES.findall(log.read_text(errors="replace"))[-1])
                copied = _copy_seconds(root / "staged")
                if number:  # the first one has all files to make
                    found.append(
                        {
                            "sync": seconds,
                            "staged": stats.last_stage_seconds,
                            "paused": stats.last_pause_seconds,
                            "waited": waited,
                            "loaded": loaded,
                            "copy": copied,
                            "trainer_cpu": trainer,
                            "vllm_cpu": vllm,
                            "times": seconds / (copied + loaded),
                        }
                    )
            transfer.destroy()
        server.stop()
        medians = {key: round(statistics.median(one[key] for one in found), 3) for key in found[0]}
        return {"billions": size, "bytes": transfer.stats.last_bytes, "syncs": syncs, **medians}


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_full", description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=list(_SHAPES), default=list(_SHAPES))
    parser.add_argument("--syncs", type=int, default=5)
    options = parser.parse_args()
    for size in options.sizes:
        print(json.dumps(measure(size, options.syncs)), flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of libraries have nothing to save
