"""Four GPUs of one node: sharded training on two, vLLM on the other two, as GymTrainingRuns.

    python -m benchmarks.gpu.random_model FOLDER --tokenizer SMOLLM2
    python -m benchmarks.gpu.four_gpus --model FOLDER --out DIRECTORY

The first command makes a model of Qwen3-8B's shape; `one_each` and `experts` need others, by --shape. The second needs
KUBECONFIG of a cluster with the operator and its images for GPUs, where FOLDER is on the node.

  tensor_parallel   FSDP2 over two ranks, vLLM over two GPUs, weights by NCCL; a sharded checkpoint, then rank 1 is
                    killed, then a worker of vLLM
  replicas          two vLLM pods of one GPU each
  httpfull          tensor_parallel by HTTPFull, without the kills
  adapter           ... by LoRAFilesystem, for 55 steps: parity is checked at the 50th sync too
  learning          the quickstart in the shape of `replicas` (SmolLM2's nine heads can't be shared by two GPUs)
  learning_one      the quickstart with one GPU on each side, for comparison
  one_each          Qwen3-4B: all weights, with one GPU on each side, or both on a share of the same, by HTTPFull
  experts           the same with Qwen3-3B-experts, a tenth of Qwen3-30B-A3B

Prints one line of JSON a case, as soon as it is over; logs of its pods, what the GPUs held and its steps are in
DIRECTORY. With --shared-ipc pods share the node's IPC namespace and /dev/shm, which restricted Pod Security and the
chart's admission policy forbid.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.random_model import CHANGING, RANDOM_ADAPTER, RANDOM_PARITY
from benchmarks.gpu.training_steps import PEAK, operations_per_token
from benchmarks.shapes import BY_NAME
from gymtrain_trainer.sizing.shapes import from_config
from tests.support.apiserver import binary
from tests.support.faults import WhereTold, events_in, kill_at, step, trainer_events
from tests.support.gpu_runs import gpu_run
from tests.support.kubectl import Kubectl, KubectlError, eventually

_CLAIM = "models"
_PROMPT, _ANSWER = 64, 256  # tokens: the quickstart's questions have about so many
_COMPILED = "compiled"
_FIRST_STEP = 420.0
_STEPS = 420.0
_AFTER_A_KILL = 3  # steps to see
_LOG = 3_000_000  # characters
_FIRST_ERRORS = 20  # lines of a log
_WARM_UP = 2  # steps that aren't counted
_SAMPLED_EVERY = 2.0
_SHARED_IPC = "one-node"


@dataclass(frozen=True)
class Case:
    """One run. `servers`: vLLM pods; `server_gpus`: of each; `ranks`: of the trainer's one pod."""

    name: str
    transport: str = "NCCL"
    servers: int = 1
    server_gpus: int = 2
    ranks: int = 2
    small: bool = False  # SmolLM2-135M, which can learn
    model: str = "Qwen3-8B"  # whose shape the other has
    memory: float = 0.8  # of a GPU that is vLLM's
    config: Mapping[str, Any] = field(default_factory=dict)
    every: int = 50  # syncs between parity checks
    killed: bool = False


CASES = {
    case.name: case
    for case in (
        Case(
            "tensor_parallel",
            # One checkpoint before the kills and one at the end, which is always written.
            config={"max_steps": 15, "save_strategy": "steps", "save_steps": 8, "save_total_limit": 1},
            every=5,
            killed=True,
        ),
        Case("replicas", servers=2, server_gpus=1, config={"max_steps": 7}, every=5),
        Case("httpfull", "HTTPFull", config={"max_steps": 7}, every=5),
        Case("adapter", "LoRAFilesystem", config={"max_steps": 55, "learning_rate": 1e-4}),
        Case("fifty", config={"max_steps": 55}),
        Case("learning", servers=2, server_gpus=1, small=True),
        Case("learning_one", server_gpus=1, ranks=1, small=True),
        # vLLM's memory leaves room on an H200 for the trainer, which holds 16 bytes for each parameter.
        Case("one_each", "HTTPFull", 1, 1, 1, model="Qwen3-4B", memory=0.25, config={"max_steps": 7}, every=5),
        Case("experts", "HTTPFull", 1, 1, 1, model="Qwen3-3B-experts", memory=0.25, config={"max_steps": 7}, every=5),
    )
}


def run_of(case: Case, vllm: Sequence[str] = (), *, shared_ipc: bool = False) -> dict[str, Any]:
    """The case's GymTrainingRun. `vllm`: more arguments of vLLM."""
    run = gpu_run(case.name.replace("_", "-"), case.transport, max_steps=40)
    spec = run["spec"]
    spec["inference"].update(replicas=case.servers, gpus=case.server_gpus)
    spec["trainer"].update(gpus=case.ranks, processesPerNode=case.ranks)
    config = spec["trainer"]["config"]
    config["per_device_train_batch_size"] //= case.ranks
    if case.ranks > 1:
        layer = "LlamaDecoderLayer" if case.small else "Qwen3DecoderLayer"
        config |= {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": [layer]}}
    spec["weightSync"]["parityEverySyncs"] = case.every
    if case.small:
        config |= case.config
    else:
        _make_large(spec, case)
    spec["inference"]["args"] += vllm
    if shared_ipc:
        _share_ipc(spec)
    return run


def _make_large(spec: dict[str, Any], case: Case) -> None:
    spec["weightSync"]["parityThreshold"] = RANDOM_PARITY
    spec["model"] = {"source": f"pvc://{_CLAIM}/model", "dtype": "bfloat16"}
    if case.transport == "LoRAFilesystem":
        spec["model"]["lora"] = dict(RANDOM_ADAPTER)
    spec["data"].pop("validation")
    spec.pop("evaluation")
    memory = f"--gpu-memory-utilization={case.memory}"
    args = ["--max-model-len=1024", memory, f"--tensor-parallel-size={case.server_gpus}"]
    spec["inference"].update(args=args, compileCache={"claimName": _COMPILED})
    trainer = spec["trainer"]
    trainer["checkpoint"] = {"size": "300Gi", "retain": "Delete"}
    trainer.pop("records")
    config = trainer["config"]
    config.pop("save_steps")
    config |= {"max_completion_length": _ANSWER, "gradient_accumulation_steps": 4}
    config["per_device_train_batch_size"] = 16 // case.ranks
    config |= {"gradient_checkpointing": True, "learning_rate": 1e-5, "save_strategy": "no", **CHANGING, **case.config}
    # Samples can't be checked without a copy of all weights.
    for container in trainer["template"]["spec"]["containers"]:
        container["env"] = [one for one in container["env"] if one["name"] != "GYMTRAIN_CHECK_SAMPLES"]


def _share_ipc(spec: dict[str, Any]) -> None:
    # NCCL takes pods for one node if they say so, and CUDA hands memory between them only by the older calls: the
    # newer ones pass it through a socket of the network namespace.
    told = [{"name": "NCCL_HOSTID", "value": _SHARED_IPC}, {"name": "NCCL_CUMEM_ENABLE", "value": "0"}]
    for part in (spec["inference"], spec["trainer"]):
        pod = part["template"]["spec"]
        place = {"path": "/dev/shm", "type": "Directory"}  # noqa: S108 - a mount, not a file
        pod |= {"hostIPC": True, "volumes": [{"name": "shm", "hostPath": place}]}
        for container in pod["containers"]:
            container["env"] = [*container["env"], *told]


@dataclass
class Memory:
    """The most that one GPU held, in MiB, and that a pod's memory did, in bytes; by role."""

    gpu: dict[str, int] = field(default_factory=dict)
    host: dict[str, int] = field(default_factory=dict)


def figures(steps: Sequence[Mapping[str, Any]], ranks: int, prompt: int) -> dict[str, Any]:
    """What the trainer's lines of a run's undisturbed steps come to; medians.

    Args:
        steps: at least one more than the two that aren't counted.
        ranks: GPUs that train.
        prompt: tokens of one, which the lines don't count.
    """
    counted = steps[_WARM_UP:]
    seconds = statistics.median(line["seconds"] for line in counted)
    samples = statistics.median(line["samples"] for line in counted)
    tokens = statistics.median(line["tokens"] + prompt * line["samples"] for line in counted)

    def median(name: str) -> float | None:
        known = [line[name] for line in counted if name in line]
        return round(statistics.median(known), 3) if known else None

    return {
        "steps": len(counted),
        "step_s": round(seconds, 3),
        "samples_per_s": round(samples / seconds, 2),
        "tokens_per_s_gpu": round(tokens / seconds / ranks),
        "tokens": round(tokens),
        "wait_s": median("rollout_wait_s"),
        "sync_s": median("weight_sync_s"),
        "reward_first": round(statistics.fmean(line["reward"] for line in steps[:3]), 4),
        "reward_last": round(statistics.fmean(line["reward"] for line in steps[-10:]), 4),
    }


def mfu(found: Mapping[str, Any], model: str, length: int) -> float:
    """Share of the GPUs' peak, of whole steps: what is generated and sent meanwhile included."""
    kind, config = BY_NAME[model]
    shape = from_config({**config, "model_type": kind, "max_position_embeddings": length}, model)
    # Of experts, those that a token sees.
    idle = shape.layers * (shape.experts - shape.experts_per_token) * 3 * shape.inner * shape.hidden
    operations = operations_per_token(config, shape.parameters - idle, length)
    return round(float(found["tokens_per_s_gpu"]) * operations / PEAK, 4)


def checkpoint_seconds(log: str, step: int) -> float | None:
    """From a step's end until its checkpoint was written, by a trainer's log; None if it says nothing of one."""
    ended = next((float(line["time"]) for line in events_in(log, "step") if line["step"] == step), None)
    written = re.search(rf"^(\S+ \S+),\d+ INFO checkpoint \S+-{step}$", log, re.MULTILINE)
    if ended is None or written is None:
        return None
    return round(datetime.fromisoformat(written[1]).replace(tzinfo=UTC).timestamp() - ended, 1)


def measure(kubectl: Kubectl, case: Case, run: dict[str, Any], out: Path) -> dict[str, Any]:
    """Runs the case's run to its end.

    Raises:
        AssertionError, KubectlError, RuntimeError: something took too long, or the run failed.
    """
    name = run["metadata"]["name"]
    memory, began = Memory(), time.monotonic()
    kubectl.apply(run)
    found: dict[str, Any] = {}
    try:
        with _sampling(kubectl, name, memory):
            eventually(lambda: step(kubectl, name) >= 1 or _ended(kubectl, name), "a step is done", _FIRST_STEP)
            if ended := _ended(kubectl, name):
                raise RuntimeError(f"ended before the first step: {ended}")
            found["first_step_s"] = round(time.monotonic() - began, 1)
            if case.killed:
                found |= _kill(kubectl, name, case.config["save_steps"])
            kubectl.wait_condition(name, "Complete", _STEPS)
        status = kubectl.get("gymtrainingrun", name)["status"]
        found |= {"attempts": status["attempt"], "parity": status["progress"].get("parity")}
        found |= {"transport": status["weightSync"]["transport"]}
        lines = sorted(trainer_events(kubectl, name, "step"), key=lambda line: float(line["time"]))
        found |= figures(lines[: case.config["save_steps"]] if case.killed else lines, case.ranks, _PROMPT)
        if case.killed:
            first = kubectl.pods(name, role="trainer")[0]["metadata"]["name"]
            found["checkpoint_s"] = checkpoint_seconds(kubectl.logs(first, "trainer"), case.config["save_steps"])
        if not case.small:
            found["mfu"] = mfu(found, case.model, _PROMPT + _ANSWER)
        evaluated = trainer_events(kubectl, name, "evaluation")
        found["validation"] = [line["environments"] for line in evaluated]
    finally:
        found["seconds"] = round(time.monotonic() - began, 1)
        found |= {"gpu_mib": memory.gpu, "host_gib": {role: round(n / 2**30, 1) for role, n in memory.host.items()}}
        (out / f"{case.name}.json").write_text(json.dumps(found))
        _keep(kubectl, name, out / case.name)
        kubectl.run("delete", "gtr", name, "--timeout=90s", timeout=120, check=False)
        with contextlib.suppress(AssertionError):
            eventually(lambda: not kubectl.pods(name), "its pods are gone", 60)
    return found


def _ended(kubectl: Kubectl, run: str) -> str:
    """Why, where the run has failed, or a vLLM of it has ended."""
    condition = kubectl.condition(run, "Failed")
    return str(condition.get("message")) if condition.get("status") == "True" else _restarted(kubectl, run)


def _restarted(kubectl: Kubectl, run: str) -> str:
    """What a vLLM that has ended said last."""
    for pod in kubectl.pods(run, role="inference"):
        if any(one["restartCount"] for one in pod["status"].get("containerStatuses", [])):
            log = kubectl.run("logs", pod["metadata"]["name"], "-c", "inference", "--previous", check=False)
            errors = [line for line in log.splitlines() if "Error" in line]
            return "\n".join([*errors[:_FIRST_ERRORS], log[-1000:]])
    return ""


def _kill(kubectl: Kubectl, name: str, save_steps: int) -> dict[str, Any]:
    """Rank 1 and then a worker of vLLM; seconds from each to the ends of the next steps."""
    eventually(lambda: step(kubectl, name) > save_steps, "there is a checkpoint", _STEPS)
    rank = _killed(kubectl, name, "trainer", "RANK=1", "environ")
    worker = _killed(kubectl, name, "inference", "VLLM::Worker_TP1", "cmdline")
    return {"after_rank": rank, "after_worker": worker}


def _killed(kubectl: Kubectl, name: str, role: str, word: str, told: WhereTold) -> list[float]:
    killed = time.time()
    kill_at(kubectl, name, "any", role, word, told)

    def after() -> list[float]:
        # A new attempt counts from its checkpoint, so what was told later is looked for, not higher steps.
        lines: list[dict[str, Any]] = []
        with contextlib.suppress(AssertionError, KubectlError):  # between two attempts there is no pod
            lines = trainer_events(kubectl, name, "step")
        return sorted(round(line["time"] - killed, 1) for line in lines if line["time"] > killed)

    eventually(lambda: len(after()) >= _AFTER_A_KILL, f"{_AFTER_A_KILL} steps after {word} was killed", _STEPS)
    return after()


@contextlib.contextmanager
def _sampling(kubectl: Kubectl, run: str, memory: Memory) -> Iterator[None]:
    """Looks every two seconds what GPUs and pods hold."""
    over = threading.Event()
    query = "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits; cat /sys/fs/cgroup/memory.peak"

    def look() -> None:
        while not over.wait(_SAMPLED_EVERY):
            for role in ("inference", "trainer"):
                try:
                    for pod in kubectl.pods(run, role=role):
                        place = ("exec", pod["metadata"]["name"], "-c", role, "--")
                        said = kubectl.run(*place, "sh", "-c", query, check=False, timeout=20)
                        *gpus, host = [int(line) for line in said.split()]
                        memory.gpu[role] = max([memory.gpu.get(role, 0), *gpus])
                        memory.host[role] = max(memory.host.get(role, 0), host)
                except (ValueError, OSError, subprocess.SubprocessError, KubectlError):
                    continue  # a pod that is just starting or ending

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def _keep(kubectl: Kubectl, run: str, folder: Path) -> None:
    """Logs of the run's pods, and what kubectl says of it."""
    folder.mkdir(parents=True, exist_ok=True)
    for command in (("get", "gtr", run), ("get", "gtr", run, "-o", "yaml"), ("get", "pods", "-o", "wide")):
        with (folder / "kubectl.txt").open("a") as file:
            file.write(kubectl.run(*command, check=False))
    for pod in kubectl.pods(run):
        name = pod["metadata"]["name"]
        for which, more in (("", ()), ("-before", ("--previous",))):
            log = kubectl.run("logs", name, "--all-containers", *more, check=False)
            if log:
                (folder / f"{name}{which}.log").write_text(log[-_LOG:])


def _volumes(name: str, folder: str) -> list[dict[str, Any]]:
    """The model's folder on the node as a claim, and a claim for what vLLM compiles."""
    room = {"requests": {"storage": "50Gi"}}
    volume = {
        "capacity": {"storage": "50Gi"},
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": folder, "type": "Directory"},
    }
    claim = {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": name, "resources": room}
    compiled = {"accessModes": ["ReadWriteOnce"], "resources": room}
    v1 = {"apiVersion": "v1"}
    return [
        {**v1, "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {**v1, "kind": "PersistentVolumeClaim", "metadata": {"name": _CLAIM}, "spec": claim},
        {**v1, "kind": "PersistentVolumeClaim", "metadata": {"name": _COMPILED}, "spec": compiled},
    ]


def main() -> int:
    """Runs what was asked for; a case that fails is reported, and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Whoever ends it still gets the logs of the case that runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    parser.add_argument("--model", help="FOLDER on the node")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--namespace", default="four-gpus")
    parser.add_argument("--shared-ipc", action="store_true")
    parser.add_argument("--vllm-arg", action="append", default=[], help="one more of vLLM's arguments")
    options = parser.parse_args()
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        parser.error("set KUBECONFIG to a cluster with GPUs, the operator and its images for GPUs")
    options.out.mkdir(parents=True, exist_ok=True)
    kubectl = Kubectl(kubeconfig, options.namespace, binary("kubectl"))
    if not kubectl.run("get", "namespace", options.namespace, "--ignore-not-found"):
        kubectl.run("create", "namespace", options.namespace)
        if not options.shared_ipc:
            kubectl.run("label", "namespace", options.namespace, "pod-security.kubernetes.io/enforce=restricted")
        if options.model:
            kubectl.apply(*_volumes(options.namespace, options.model))
    failed = False
    for name in options.only:
        found: dict[str, Any] = {"case": name, "shared_ipc": options.shared_ipc}
        try:
            run = run_of(CASES[name], options.vllm_arg, shared_ipc=options.shared_ipc)
            found |= measure(kubectl, CASES[name], run, options.out)
        except Exception as error:
            failed = True
            found |= {"error": f"{type(error).__name__}: {error}"[-4000:]}
        print(json.dumps(found), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
