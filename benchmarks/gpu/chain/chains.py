"""One chain from its start to its end: vLLM on the first GPU, training on the second, or on the same one; or each on
several, in that order.

Ours is vLLM as a run starts it, the gateway, a stand-in for the agent, the trainer with our NCCL transport; TRL's is
its trainer with its own NCCL transfer and a worker that asks vLLM directly (plain.py).
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.chain import namespace
from benchmarks.gpu.chain.task import ANSWER_TOKENS, GENERATIONS, Slow, Tails, rows, slow_shares
from benchmarks.gpu.random_model import CHANGING, RANDOM_ADAPTER, RANDOM_PARITY
from benchmarks.processes import busiest_threads, ended_after
from dev.gpu.vllm_server import NO_MULTICAST, START_SECONDS, free_port, serving, wait_until_up
from gymtrain_api.spec import CorrectionMode
from gymtrain_api.transports import TransportName
from gymtrain_api.wiring import GATEWAY_PORT, RunConfig
from gymtrain_trainer.checkpoints.folder import last_checkpoint
from gymtrain_trainer.data.rows import Tasks, read_index
from tests.unit.trainer.trainer_data import write_dataset, write_index

TRAINER_LOG = "trainer.log"  # of both sides; each finished step is a line of JSON in it
TRL_STALENESS = 4  # TRL's own default

_WARM_UP = 10  # steps left out of means
_HOST = "127.0.0.1"
_SERVERS = "vllm"  # what several of them are called together, as by a headless Service
_STEP = '{"event": "step"'  # how a line of it begins
_LOOK_SECONDS = 2.0
_END_LOOKS = 2  # left out: the trainer writes its model and ends
_LEAST_SHARE = 0.05
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    **NO_MULTICAST,
    "PYTHONUNBUFFERED": "1",
    "VLLM_HOST_IP": _HOST,
}

type Side = Literal["ours", "trl"]


@dataclass(frozen=True)
class Chain:
    """What a chain runs with.

    Attributes:
        side: whose trainer.
        model: folder.
        seed: of the order of rows, and of training.
        steps: of the optimizer.
        batch: rollouts of a step.
        slow: which rollouts take longer.
        staleness: the highest, in weight versions. Beyond it TRL drops samples; ours starts none so far ahead.
        correction: `spec.rollout.correction.mode`. TRL's own loss is "None".
        in_flight: rollouts at once, at most.
        queue: samples that wait, of TRL's side.
        memory: share of the first GPU's memory for vLLM.
        cache_bytes: of its key-value cache; None for what is left of `memory`. vLLM measures what is left by the GPU's
            free memory, which fails where another server starts on that GPU meanwhile.
        api_servers: processes of vLLM that answer calls.
        seconds: from the chain's start to the end of its training, at most.
        one_gpu: training is on the first GPU too. NCCL refuses that, so the weights go by HTTPFull. Ours alone.
        replicas: servers of vLLM. Ours alone, as what follows. Several need root (namespace.add_name).
        tensor_parallel: GPUs of each.
        ranks: GPUs that train. More than one shard the model (FSDP2).
        transport: of the weights.
        answer_tokens: of a rollout, at most.
        micro_batches: of a step, on each rank.
    """

    side: Side
    model: Path
    seed: int = 1
    steps: int = 60
    batch: int = 64
    slow: Slow = "none"
    staleness: int = TRL_STALENESS
    correction: CorrectionMode = "None"
    in_flight: int = 512
    queue: int = 128
    memory: float = 0.4
    cache_bytes: int | None = None
    api_servers: int = 1
    seconds: float = 210.0
    one_gpu: bool = False
    replicas: int = 1
    tensor_parallel: int = 1
    ranks: int = 1
    transport: TransportName = "NCCL"
    answer_tokens: int = ANSWER_TOKENS
    micro_batches: int = 1

    @property
    def name(self) -> str:
        """Tells it from others; fit for a file."""
        return f"{self.side}-{self.slow}-{self.staleness}-{self.correction}-{self.transport}-{self.seed}"

    @property
    def vllm_gpus(self) -> list[str]:
        """CUDA_VISIBLE_DEVICES of each vLLM."""
        firsts = range(0, self.replicas * self.tensor_parallel, self.tensor_parallel)
        return [",".join(map(str, range(first, first + self.tensor_parallel))) for first in firsts]

    @property
    def trainer_gpus(self) -> str:
        """CUDA_VISIBLE_DEVICES of the trainer."""
        first = 0 if self.one_gpu else self.replicas * self.tensor_parallel
        return ",".join(map(str, range(first, first + self.ranks)))

    def vllm_arguments(self) -> list[str]:
        """Those that are the same on both sides."""
        cache = [] if self.cache_bytes is None else [f"--kv-cache-memory-bytes={self.cache_bytes}"]
        servers = [] if self.api_servers == 1 else [f"--api-server-count={self.api_servers}"]
        return ["--max-model-len=1024", *cache, *servers]


def run(chain: Chain, work: Path) -> dict[str, Any]:
    """What was measured of a whole run, after its end.

    Args:
        chain: to run.
        work: folder that gets the logs. Model, data and checkpoints are in another one, which is gone afterwards.

    Raises:
        RuntimeError: it did not come to its end in time; with the end of a log.
    """
    work.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + chain.seconds
    with tempfile.TemporaryDirectory(prefix="chain-", ignore_cleanup_errors=True) as root:
        return (_ours if chain.side == "ours" else _trl)(chain, work, Path(root), end)


def keep_logs(work: Path, archive: Path) -> None:
    """Adds a chain's logs to a zip file: few and small files come back from a lent machine."""
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as kept:
        for log in sorted(work.glob("*.log")):
            kept.write(log, f"{work.name}/{log.name}")


def _trl(chain: Chain, work: Path, root: Path, end: float) -> dict[str, Any]:
    arguments = [
        '--weight-transfer-config={"backend":"nccl"}',
        f"--served-model-name={chain.model}",
        *chain.vllm_arguments(),
    ]
    log = work / TRAINER_LOG
    server = serving(
        chain.model,
        work / "vllm.log",
        *arguments,
        memory=chain.memory,
        start_seconds=_start_seconds(end),
        VLLM_HOST_IP=_HOST,
    )
    with server as port:
        settings = [f"http://{_HOST}:{port}", chain.model, chain.steps, chain.batch, chain.seed, chain.slow]
        settings += [chain.in_flight, chain.queue, chain.staleness]
        command = ["benchmarks.gpu.chain.plain", *map(str, settings)]
        with _process(command, log, {"CUDA_VISIBLE_DEVICES": "1", "OUT": str(root)}) as trainer:
            busy = _wait(trainer, end, log)
    lines = log.read_text(errors="replace").splitlines()
    found: dict[str, Any] = json.loads(next(line for line in reversed(lines) if line.startswith('{"side"')))
    return {**found, "busy": busy}


def _ours(chain: Chain, work: Path, root: Path, end: float) -> dict[str, Any]:
    ports = {name: free_port() for name in ("inference", "agent", "trainer")}
    ports["gateway"] = GATEWAY_PORT  # where the trainer looks for its ledger
    run = _prepare(root, chain, ports)
    shared = {
        "GYMTRAIN_RUN_CONFIG": str(root / "run.json"),
        "GYMTRAIN_ROOT": str(root),
        "GYMTRAIN_INFERENCE_PORT": str(ports["inference"]),
        "GYMTRAIN_GATEWAY_PORT": str(ports["gateway"]),
        "GYMTRAIN_TRAINER_PORT": str(ports["trainer"]),
        "GYMTRAIN_TERMINATION_LOG": str(work / "termination.log"),
    }
    agent = ["benchmarks.gpu.chain.agent", f"http://{_HOST}:{ports['gateway']}", str(ports["agent"]), chain.slow]
    addresses = [f"127.0.0.{number}" for number in range(1, chain.replicas + 1)]  # all of them loopback
    if chain.replicas > 1:
        namespace.add_name(_SERVERS, addresses, root / "hosts")
    with contextlib.ExitStack() as stack:
        servers: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        for address, gpus in zip(addresses, chain.vllm_gpus, strict=True):
            own, log = root / f"vllm-{address}", work / f"vllm-{address}.log"
            (own / "scratch").mkdir(parents=True)
            (own / "model").symlink_to(chain.model.resolve())
            environment = shared | {"GYMTRAIN_ROOT": str(own), "CUDA_VISIBLE_DEVICES": gpus}
            serve = _process(["benchmarks.gpu.chain.server", address], log, environment)
            servers[address] = (stack.enter_context(serve), log)
        for name, command in (("gateway", ["gymtrain_gateway"]), ("agent", agent)):
            stack.enter_context(_process(command, work / f"{name}.log", shared | {"CUDA_VISIBLE_DEVICES": ""}))
        # Beside vLLM, which it waits for: each takes half a minute to import what it needs.
        log = work / TRAINER_LOG
        environment = shared | {"CUDA_VISIBLE_DEVICES": chain.trainer_gpus}
        trainer = stack.enter_context(_process(["benchmarks.gpu.chain.trainer"], log, environment))
        for address, (server, said) in servers.items():
            wait_until_up(server, f"{address}:{ports['inference']}", said, _start_seconds(end))
        busy = _wait(trainer, end, log)
    return {**_measured(root, run, log, Tails(chain.slow)), "busy": busy}


def _start_seconds(end: float) -> float:
    return min(START_SECONDS, end - time.monotonic())


def _prepare(root: Path, chain: Chain, ports: Mapping[str, int]) -> RunConfig:
    for folder in ("data", "checkpoints", "scratch"):
        (root / folder).mkdir(parents=True)
    (root / "model").symlink_to(chain.model.resolve())
    made = [
        {"responses_create_params": {"input": row["prompt"]}, "entry": row["entry"], "number": number}
        for number, row in enumerate(rows())
    ]
    write_index(root / "data", write_dataset(root / "data", made, agent="sums"))
    config = {
        "learning_rate": 1e-5,
        "max_steps": chain.steps,
        "num_generations": GENERATIONS,
        "per_device_train_batch_size": chain.batch // chain.ranks // chain.micro_batches,
        "gradient_accumulation_steps": chain.micro_batches,
        "max_completion_length": chain.answer_tokens,
        "bf16": True,
        "gradient_checkpointing": False,
        "report_to": "none",
        "logging_steps": 1,
        "save_steps": chain.steps,
        "seed": chain.seed,
    }
    if chain.ranks > 1:
        config |= _sharding(chain.model)
    arguments = [f"--gpu-memory-utilization={chain.memory}", "--enforce-eager", *chain.vllm_arguments()]
    model: dict[str, Any] = {"source": "pvc://models/model", "dtype": "bfloat16"}
    if chain.transport == "LoRAFilesystem":
        model["lora"] = dict(RANDOM_ADAPTER)
        config["learning_rate"] = 1e-4
    spec = {
        "model": model,
        "gym": {"configPaths": ["sums.yaml"]},
        "data": {"train": [{"source": "gym://sums"}]},
        "inference": {"replicas": chain.replicas, "gpus": chain.tensor_parallel, "args": arguments},
        "trainer": {
            "gpus": chain.ranks,
            "processesPerNode": chain.ranks,
            "config": config,
            "checkpoint": {"size": "1Gi"},
        },
        "rollout": {
            "maxConcurrent": chain.in_flight,
            "timeoutSeconds": 120,
            "maxStaleness": chain.staleness,
            "stallTimeoutSeconds": 300,
            "correction": {"mode": chain.correction},
        },
        "gateway": {"maxInFlight": 1024},
        "weightSync": {"transport": "HTTPFull" if chain.one_gpu else chain.transport, **_parity(chain)},
    }
    run = RunConfig.model_validate(
        {
            "name": "chain",
            "namespace": "bench",
            "uid": "u1",
            "spec": spec,
            "inference_url": f"http://{_HOST}:{ports['inference']}",
            "inference_pods_host": _SERVERS if chain.replicas > 1 else _HOST,
            "gateway_url": f"http://{_HOST}:{ports['gateway']}",
            "gateway_pods_host": _HOST,
            "trainer_host": _HOST,
            "agents": {"sums": f"http://{_HOST}:{ports['agent']}"},
        }
    )
    (root / "run.json").write_text(run.model_dump_json(by_alias=True))
    return run


def _parity(chain: Chain) -> dict[str, str]:
    """Models that are trained on several GPUs here have random weights."""
    return {"parityThreshold": RANDOM_PARITY} if chain.ranks > 1 else {}


def _sharding(model: Path) -> dict[str, Any]:
    """Of a large model, whose optimizer isn't written either."""
    architecture: str = json.loads((model / "config.json").read_text())["architectures"][0]
    layer = architecture.replace("ForCausalLM", "DecoderLayer")
    sharding = {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": [layer]}}
    return {**sharding, "gradient_checkpointing": True, "save_strategy": "no", **CHANGING}


def _measured(root: Path, run: RunConfig, log: Path, tails: Tails) -> dict[str, Any]:
    lines = log.read_text(errors="replace").splitlines()
    steps = [json.loads(line) for line in lines if line.startswith(_STEP)]
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
        **_slow_shares(root, run, tails),
        "kl": round(statistics.fmean(step.get("kl", 0.0) for step in steady), 5),
        "trained_tokens_per_second": round(sum(step["tokens"] for step in steady) / seconds),
        "parity": [float(line.rpartition(" ")[2]) for line in lines if "mean difference" in line],
    }


def _slow_shares(root: Path, run: RunConfig, tails: Tails) -> dict[str, float]:
    """Of slow rows, among those that were trained on (the last checkpoint knows), and among as many first drawn."""
    checkpoint = last_checkpoint(root / "checkpoints", run.uid)
    if checkpoint is None:
        return {}
    place = checkpoint.state.place
    tasks = Tasks(read_index(root / "data" / "index.json"), run.agents, run.spec.trainer.config["seed"])
    trained = [tasks.at(position).row["number"] for position in (*range(place.first_open), *place.done)]
    return slow_shares(tails, trained, [tasks.at(position).row["number"] for position in range(len(trained))])


@contextlib.contextmanager
def _process(module: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        command = [sys.executable, "-m", *module]
        everything = {**os.environ, **_ENVIRONMENT, **environment}
        process = subprocess.Popen(command, env=everything, stdout=output, stderr=subprocess.STDOUT)
    with ended_after(process):
        yield process


def _wait(process: subprocess.Popen[bytes], end: float, log: Path) -> dict[str, float]:
    """How busy the chain's processes were from the end of the warm-up on: the share of that time in which the busiest
    thread of each ran, where that is a twentieth and more.

    Raises:
        RuntimeError: it doesn't end well before `end`, by the monotonic clock; with the end of the log.
    """
    looks: list[tuple[float, dict[str, float]]] = []
    while (code := process.poll()) is None and (left := end - time.monotonic()) > 0:
        if looks or log.read_bytes().count(_STEP.encode()) >= _WARM_UP:
            looks.append((time.monotonic(), busiest_threads(os.getpid())))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(_LOOK_SECONDS, left))
    if code != 0:
        verdict = "did not end in time" if code is None else f"ended with {code}"
        raise RuntimeError("\n".join([*log.read_text(errors="replace").splitlines()[-25:], f"{log.name}: {verdict}"]))
    return busy_shares(looks[:-_END_LOOKS])


def busy_shares(looks: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """By process, from the first look to the last: each has the time, in seconds, and CPU seconds by process."""
    if len(looks) < 2:
        return {}
    (began, first), (ended, last) = looks[0], looks[-1]
    shares = {name: (cpu - first[name]) / (ended - began) for name, cpu in last.items() if name in first}
    return {name: round(share, 2) for name, share in shares.items() if share >= _LEAST_SHARE}
