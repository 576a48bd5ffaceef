"""The whole chain against TRL's own trainer, on two GPUs: vLLM on the first, training on the second.

    PYTHONPATH=api:kube:trainer:gateway:inference:. python3 -m benchmarks.gpu.chain --model FOLDER [--slow rollouts]

Same model, rows, batch, staleness and attention. Ours is vLLM as a run starts it, the gateway, a stand-in for the
agent, the trainer with our NCCL transport; TRL's is its trainer with its own NCCL transfer and a worker that asks vLLM
directly (plain.py). Prints one line of JSON a run; logs are in $OUT.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.chain.task import ANSWER_TOKENS, GENERATIONS, Tails, rows
from dev.gpu.vllm_server import free_port, serving, wait_until_up
from gymtrain_api.wiring import GATEWAY_PORT, RunConfig
from gymtrain_trainer.checkpoints.folder import last_checkpoint
from gymtrain_trainer.data.rows import Tasks, read_index
from tests.unit.trainer.trainer_data import write_dataset, write_index

_WARM_UP = 10  # steps left out of means
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "NCCL_NVLS_ENABLE": "0",
    "PYTHONUNBUFFERED": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}


def main() -> int:
    """Runs what was asked for; a run that fails is reported with the end of its log, and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sides", nargs="*", choices=("ours", "trl"), default=["ours", "trl"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="rollouts of a step")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--slow", nargs="*", choices=("none", "rollouts", "rows"), default=["none"])
    parser.add_argument("--staleness", type=int, default=4, help="of ours; TRL's is 4")
    parser.add_argument("--in-flight", type=int, default=512, help="rollouts")
    parser.add_argument(
        "--trl-in-flight", type=int, default=128, help="rollouts of TRL's side, with which it is fastest"
    )
    parser.add_argument("--trl-queue", type=int, default=128, help="its samples that wait")
    parser.add_argument("--correction", default="None")
    parser.add_argument("--seconds", type=float, default=150.0, help="the most that one run takes")
    options = parser.parse_args()
    out = Path(os.environ.get("OUT", "."))
    for slow in options.slow:
        for seed in options.seeds:
            for side in options.sides:
                name = f"{side}-{slow}-{seed}"
                began = time.monotonic()
                try:
                    found = (_ours if side == "ours" else _trl)(options, slow, seed, out / name)
                except Exception as error:
                    found = {"side": side, "error": f"{type(error).__name__}: {error}"[-3000:]}
                found |= {"slow": slow, "seed": seed, "whole_seconds": round(time.monotonic() - began, 1)}
                print(json.dumps(found), flush=True)
    return 0


def _trl(options: argparse.Namespace, slow: str, seed: int, work: Path) -> dict[str, Any]:
    work.mkdir(parents=True, exist_ok=True)
    nccl = '--weight-transfer-config={"backend":"nccl"}'
    more = [f"--served-model-name={options.model}", "--max-model-len=1024"]
    with serving(options.model, work / "vllm.log", nccl, *more) as port:
        settings = [f"http://127.0.0.1:{port}", options.model, options.steps, options.batch, seed, slow]
        command = ["benchmarks.gpu.chain.plain", *map(str, [*settings, options.trl_in_flight, options.trl_queue])]
        with _process(command, work / "trl.log", {"CUDA_VISIBLE_DEVICES": "1", "OUT": str(work)}) as trainer:
            _wait(trainer, options.seconds, work / "trl.log")
    lines = (work / "trl.log").read_text(errors="replace").splitlines()
    found: dict[str, Any] = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
    return found


def _ours(options: argparse.Namespace, slow: Any, seed: int, work: Path) -> dict[str, Any]:
    root, ports = work / "root", {name: free_port() for name in ("inference", "agent", "trainer")}
    ports["gateway"] = GATEWAY_PORT  # where the trainer looks for its ledger
    run = _prepare(root, options, seed, ports)
    shared = {
        "GYMTRAIN_RUN_CONFIG": str(root / "run.json"),
        "GYMTRAIN_ROOT": str(root),
        "GYMTRAIN_INFERENCE_PORT": str(ports["inference"]),
        "GYMTRAIN_GATEWAY_PORT": str(ports["gateway"]),
        "GYMTRAIN_TRAINER_PORT": str(ports["trainer"]),
        "GYMTRAIN_TERMINATION_LOG": str(work / "termination.log"),
    }
    agent = ["benchmarks.gpu.chain.agent", f"http://127.0.0.1:{ports['gateway']}", str(ports["agent"]), slow]
    with contextlib.ExitStack() as stack:
        serve = _process(["gymtrain_vllm.serve"], work / "vllm.log", shared | {"CUDA_VISIBLE_DEVICES": "0"})
        vllm = stack.enter_context(serve)
        for name, command in (("gateway", ["gymtrain_gateway"]), ("agent", agent)):
            stack.enter_context(_process(command, work / f"{name}.log", shared | {"CUDA_VISIBLE_DEVICES": ""}))
        wait_until_up(vllm, f"127.0.0.1:{ports['inference']}", work / "vllm.log")
        log = work / "trainer.log"
        environment = shared | {"CUDA_VISIBLE_DEVICES": "1"}
        trainer = stack.enter_context(_process(["benchmarks.gpu.chain.trainer"], log, environment))
        _wait(trainer, options.seconds, log)
    return _measured(root, run, log, Tails(slow))


def _prepare(root: Path, options: argparse.Namespace, seed: int, ports: Mapping[str, int]) -> RunConfig:
    for folder in ("data", "checkpoints", "scratch"):
        (root / folder).mkdir(parents=True)
    (root / "model").symlink_to(options.model.resolve())
    made = [
        {"responses_create_params": {"input": row["prompt"]}, "entry": row["entry"], "number": number}
        for number, row in enumerate(rows())
    ]
    write_index(root / "data", write_dataset(root / "data", made, agent="sums"))
    config = {
        "learning_rate": 1e-5,
        "max_steps": options.steps,
        "num_generations": GENERATIONS,
        "per_device_train_batch_size": options.batch,
        "max_completion_length": ANSWER_TOKENS,
        "bf16": True,
        "gradient_checkpointing": False,
        "report_to": "none",
        "logging_steps": 1,
        "save_steps": options.steps,
        "seed": seed,
    }
    spec = {
        "model": {"source": "pvc://models/model", "dtype": "bfloat16"},
        "gym": {"configPaths": ["sums.yaml"]},
        "data": {"train": [{"source": "gym://sums"}]},
        "inference": {"gpus": 1, "args": ["--max-model-len=1024", "--gpu-memory-utilization=0.4", "--enforce-eager"]},
        "trainer": {"gpus": 1, "config": config, "checkpoint": {"size": "1Gi"}},
        "rollout": {
            "maxConcurrent": options.in_flight,
            "timeoutSeconds": 120,
            "maxStaleness": options.staleness,
            "stallTimeoutSeconds": 300,
            "correction": {"mode": options.correction},
        },
        "gateway": {"maxInFlight": 1024},
        "weightSync": {"transport": "NCCL"},
    }
    host = "127.0.0.1"
    run = RunConfig.model_validate(
        {
            "name": "chain",
            "namespace": "bench",
            "uid": "u1",
            "spec": spec,
            "inference_url": f"http://{host}:{ports['inference']}",
            "inference_pods_host": host,
            "gateway_url": f"http://{host}:{ports['gateway']}",
            "gateway_pods_host": host,
            "trainer_host": host,
            "agents": {"sums": f"http://{host}:{ports['agent']}"},
        }
    )
    (root / "run.json").write_text(run.model_dump_json(by_alias=True))
    return run


def _measured(root: Path, run: RunConfig, log: Path, tails: Tails) -> dict[str, Any]:
    lines = log.read_text(errors="replace").splitlines()
    steps = [json.loads(line) for line in lines if line.startswith('{"event": "step"')]
    steady = steps[_WARM_UP:]
    if not steady:
        raise RuntimeError("\n".join(lines[-30:]))
    seconds = sum(step["seconds"] for step in steady)
    dropped = sum("group dropped" in line for line in lines)
    return {
        "side": "ours",
        "rollouts_per_second": round(sum(step["rollouts"] for step in steady) / seconds, 1),
        "step_seconds": round(seconds / len(steady), 4),
        "median_step_seconds": round(statistics.median(step["seconds"] for step in steady), 4),
        "wait_share": round(sum(step.get("rollout_wait_s", 0.0) for step in steady) / seconds, 4),
        "dropped_share": round(dropped / (dropped + sum(step["groups"] for step in steps)), 4),
        "staleness": round(statistics.fmean(step["staleness"] for step in steady), 3),
        "weight_sync_seconds": round(statistics.median(step.get("weight_sync_s", 0.0) for step in steady), 4),
        "reward_first": round(statistics.fmean(step["reward"] for step in steps[:10]), 4),
        "reward_last": round(statistics.fmean(step["reward"] for step in steps[-10:]), 4),
        "slow_share": _slow_share(root, run, tails),
        "kl": round(statistics.fmean(step.get("kl", 0.0) for step in steady), 5),
    }


def _slow_share(root: Path, run: RunConfig, tails: Tails) -> float | None:
    """Share of slow rows among those that were trained on: the last checkpoint knows which."""
    checkpoint = last_checkpoint(root / "checkpoints", run.uid)
    if checkpoint is None:
        return None
    place = checkpoint.state.place
    tasks = Tasks(read_index(root / "data" / "index.json"), run.agents, run.spec.trainer.config["seed"])
    trained = [*range(place.first_open), *place.done]
    return round(statistics.fmean(tails.of_row(tasks.at(position).row["number"]) for position in trained), 4)


@contextlib.contextmanager
def _process(module: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        command = [sys.executable, "-m", *module]
        everything = {**os.environ, **_ENVIRONMENT, **environment}
        process = subprocess.Popen(command, env=everything, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], seconds: float, log: Path) -> None:
    """Raises RuntimeError with the end of the log where it doesn't end well in time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if process.wait(seconds) == 0:
            return
    raise RuntimeError("\n".join(log.read_text(errors="replace").splitlines()[-25:]))


if __name__ == "__main__":
    sys.exit(main())
