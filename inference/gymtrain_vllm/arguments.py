"""The command line and variables of vLLM, computed from the run. Pure: no file but vLLM's own text is read.

Order of the arguments: our defaults, then the user's (`spec.inference.args`). vLLM lets the last one win, so users
can replace every default; what the run depends on is refused instead, with the reason.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gymtrain_api.spec import GymTrainingRunSpec, Inference
from gymtrain_api.transports import (
    LORA_RANKS,
    NCCL_BACKEND,
    adapters_held,
    lora_rank,
    planned,
    takes_adapters,
    vllm_backend,
)
from gymtrain_api.vllm_arguments import parallel_sizes
from gymtrain_api.wiring import GROUP_RENDEZVOUS_PORT, SERVED_MODEL_NAME
from gymtrain_vllm.errors import ArgumentsError
from gymtrain_vllm.listening import any_address
from gymtrain_vllm.vllm_internals import engine_knows_its_weights, server_knows

PLUGIN = "gymtrain"  # name of our entry point
_CPU_CACHE_GIB = "1"  # of the key-value cache, which vLLM fills with zeros at start

_SHORTEST = 3  # characters; below, a flag is a short option of its own


# Arguments that users may not give, and who depends on them.
_RESERVED = {
    "--model": "the operator mounts the model of spec.model",
    "--served-model-name": "the Gym config calls the model by this name",
    "--host": "the Services need it",
    "--port": "the Services need it",
    "--uds": "the Services need a port",
    "--weight-transfer-config": "spec.weightSync decides how the trainer's weights arrive",
    "--enable-lora": "spec.model.lora decides it",
    "--max-loras": "spec.rollout.maxStaleness decides it",
    "--max-lora-rank": "spec.model.lora decides it",
    "--logprobs-mode": "training needs the log-probabilities of the distribution that was sampled from",
    "--generation-config": "sampling comes from spec.trainer.config, not from the model's generation_config.json",
    "--override-generation-config": "sampling comes from spec.trainer.config: set temperature there",
    "--logits-processors": "the trainer scores the model's own output and doesn't know about processors",
    "--seed": "each server draws its own seed at its start and prints it; with one seed, all would sample the same",
    "--nnodes": "spec.inference.nodes decides it",
    "-n": "spec.inference.nodes decides it",
    "--node-rank": "each pod of a server has its own",
    "-r": "each pod of a server has its own",
    "--master-addr": "the pods of a server find each other",
    "--master-port": "the pods of a server find each other",
    "--headless": "the workers of a server on several nodes have it, and no other pod",
    "--api-key": "Gym servers and trainer send none; use a NetworkPolicy",
    "--ssl-keyfile": "Gym servers and trainer speak plain HTTP",
    "--root-path": "the Services need the routes at /",
}

# The same, for a server on several nodes.
_MORE_SERVERS = "for more engines on the same model, set spec.inference.replicas"
_RESERVED_ON_NODES = {
    "--distributed-executor-backend": "only vLLM's own processes (mp) span pods here",
    "--data-parallel-size": _MORE_SERVERS,
    "-dp": _MORE_SERVERS,
    "--prefill-context-parallel-size": "the workers on several nodes are tensor and pipeline parallel",
    "-pcp": "the workers on several nodes are tensor and pipeline parallel",
}
_ATTACHED = re.compile(r"-[nr]\d")  # -n2, as the parser takes it

_API_SERVERS = ("--api-server-count", "-asc")
_ONE_API_SERVER = "has one API server process; for more servers, set spec.inference.replicas"


@dataclass(frozen=True)
class Member:
    """A pod of a server on several nodes.

    Attributes:
        index: 0 is the leader.
        leader: address of the leader.
    """

    index: int = 0
    leader: str = "127.0.0.1"


def build(
    spec: GymTrainingRunSpec,
    model: Path,
    port: int,
    seed: int = 0,
    member: Member | None = None,
    traces: str | None = None,
) -> list[str]:
    """The arguments of vLLM's OpenAI server.

    Args:
        spec: of the run.
        model: folder of the model.
        port: to listen on.
        seed: of this server's draws, below 2**32; its workers share it, as tensor parallel ones have to.
        member: which pod of the server, if it spans several; the leader where it isn't given.
        traces: URL that takes spans of requests that belong to a trace.

    Raises:
        ArgumentsError: one of `spec.inference.args` is reserved, the adapter is too large for vLLM, or the workers
            aren't as many as the GPUs of all nodes.
    """
    check(spec)
    on_gpu = spec.inference.gpus > 0
    dtype = spec.model.dtype
    if dtype == "auto" and not on_gpu:
        dtype = "float32"  # many CPUs have no half-precision instructions
    arguments = [
        f"--model={model}",
        f"--served-model-name={SERVED_MODEL_NAME}",
        f"--host={any_address()}",
        f"--port={port}",
        "--logprobs-mode=processed_logprobs",
        # Else top_k, top_p and penalties of the model's generation_config.json go into each request that leaves them
        # out. Its end-of-turn tokens are read all the same (vLLM 0.32, ModelConfig.try_get_generation_config).
        "--generation-config=vllm",
        f"--seed={seed}",
        f"--dtype={dtype}",
        *_weights(spec),
        *_workers(spec.inference, member or Member()),
        "--uvicorn-log-level=warning",  # a line per probe and rollout says nothing
    ]
    if server_knows("enable_scale_out"):
        arguments.append("--enable-scale-out")  # /inference/v1/generate; always there before 0.30
    if traces:
        arguments.append(f"--otlp-traces-endpoint={traces}")
    if not on_gpu:
        arguments.append("--enforce-eager")  # torch.compile takes minutes here, and a compiler in the image
    tensor, pipeline = parallel_sizes(spec.inference.args, spec.inference.nodes, spec.inference.gpus)
    if tensor * pipeline > 1:
        arguments.append("--middleware=gymtrain_vllm.server_exit.EndsOutOfStep")
    return arguments + list(spec.inference.args)


def _workers(inference: Inference, member: Member) -> list[str]:
    """How many worker processes, and where they are."""
    if inference.nodes == 1:
        return [f"--tensor-parallel-size={max(1, inference.gpus)}"]
    tensor, pipeline = parallel_sizes(inference.args, inference.nodes, inference.gpus)
    places = inference.nodes * max(1, inference.gpus)
    if tensor * pipeline != places:
        pod = f"{inference.gpus} GPUs" if inference.gpus else "one worker"
        raise ArgumentsError(
            f"spec.inference.args: tensor parallel {tensor} x pipeline parallel {pipeline} is {tensor * pipeline} "
            f"workers, and {inference.nodes} nodes with {pod} each have {places}: set sizes with this product, or "
            "leave one or both out"
        )
    if pipeline > 1 and not inference.gpus:
        raise ArgumentsError(
            "spec.inference.args: pipeline parallel on the CPU ends vLLM's engine at the first request (seen in 0.32): "
            f"set --tensor-parallel-size={places}, or leave both out"
        )
    return [
        f"--tensor-parallel-size={tensor}",
        f"--pipeline-parallel-size={pipeline}",
        "--distributed-executor-backend=mp",
        f"--nnodes={inference.nodes}",
        f"--node-rank={member.index}",
        f"--master-addr={member.leader}",
        f"--master-port={GROUP_RENDEZVOUS_PORT}",
        *(["--headless"] if member.index else []),
    ]


def _weights(spec: GymTrainingRunSpec) -> list[str]:
    """What the transport needs, and where the first weights come from."""
    transport = planned(spec)
    if takes_adapters(transport):
        rank = lora_rank(spec.model.lora or {})
        if rank > LORA_RANKS[-1]:
            raise ArgumentsError(
                f"spec.model.lora: rank {rank} is more than vLLM serves ({LORA_RANKS[-1]}). Lower r and rank_pattern, "
                "or set spec.weightSync.transport to NCCL or HTTPFull, which send merged weights"
            )
        return [
            "--enable-lora",
            f"--max-loras={adapters_held(spec.rollout.max_staleness)}",
            f"--max-lora-rank={next(served for served in LORA_RANKS if served >= rank)}",
            "--load-format=auto",  # the base model never arrives otherwise
        ]
    backend = vllm_backend(transport)
    if backend is None:
        return ["--load-format=auto"]
    return [
        f"--weight-transfer-config={json.dumps({'backend': backend})}",
        # Random weights: quicker than reading a checkpoint, and nothing but a complete sync can make the model
        # agree with the trainer's, which the parity check after the first sync asks for.
        "--load-format=dummy",
        *(["--middleware=gymtrain_vllm.server_exit.EndsAbandoned"] if backend == NCCL_BACKEND else []),
    ]


def check(spec: GymTrainingRunSpec) -> None:
    """Refuses reserved arguments in any of the spellings that vLLM's parser takes.

    Raises:
        ArgumentsError: names the argument and the reason.
    """
    for number, message in reserved(spec.inference.args, spec):
        raise ArgumentsError(f"spec.inference.args[{number}]: {message}")


def reserved(arguments: Sequence[str], spec: GymTrainingRunSpec) -> Iterator[tuple[int, str]]:
    """The reserved ones among `arguments` of a run's server: position, and why each can't be set."""
    names: dict[str, str] = _RESERVED if spec.inference.nodes == 1 else _RESERVED | _RESERVED_ON_NODES
    if api_servers(arguments) and (reason := one_api_server(spec)):
        names = names | dict.fromkeys(_API_SERVERS, reason)
    for number, name in _named(arguments, names):
        given = arguments[number].split("=", 1)[0]
        yield number, f"{given} can't be set: {names[name]}. Remove it."


def api_servers(arguments: Sequence[str]) -> bool:
    """Whether the arguments say how many API server processes the server has."""
    return any(_named(arguments, _API_SERVERS))


def one_api_server(spec: GymTrainingRunSpec) -> str | None:
    """Why the server can't have several API server processes; None if it can. What the trainer brings into one of them,
    all have to know."""
    if spec.inference.nodes > 1:
        return f"a server on several nodes {_ONE_API_SERVER}"
    if takes_adapters(planned(spec)):
        return f"a server of adapters {_ONE_API_SERVER}"  # vLLM's own rule: each process has a list of adapters
    if not engine_knows_its_weights():
        return f"this release of vLLM keeps the version of its weights in the API server, so each {_ONE_API_SERVER}"
    return None


def _named(arguments: Sequence[str], names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Positions of the arguments that are one of `names`, and which."""
    for number, argument in enumerate(arguments):
        if not argument.startswith("-"):
            continue
        flag = argument.split("=", 1)[0].split(".", 1)[0].replace("_", "-")
        if _ATTACHED.match(flag):
            flag = flag[:2]
        # Abbreviations count: --serv is --served-model-name to the parser.
        found = (name for name in names if flag == name or (len(flag) > _SHORTEST and name.startswith(flag)))
        if name := next(found, None):
            yield number, name


def variables(spec: GymTrainingRunSpec, given: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Variables to add to `given`, which a user's pod template may have filled.

    Raises:
        ArgumentsError: VLLM_SERVER_DEV_MODE is switched off.
    """
    if given.get("VLLM_SERVER_DEV_MODE", "1") not in ("1", "true", "True"):
        raise ArgumentsError("VLLM_SERVER_DEV_MODE must be 1: the trainer's weights arrive through those routes")
    home = scratch / "home"
    defaults = {
        "HOME": str(home),
        "USER": "gymtrain",  # libraries ask for a name, and a uid need not have one
        "TMPDIR": str(scratch / "tmp"),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "XDG_CONFIG_HOME": str(scratch / "config"),
        "HF_HOME": str(scratch / "huggingface"),
        "VLLM_CACHE_ROOT": str(scratch / "vllm-cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "HF_HUB_OFFLINE": "1",  # the model is on disk
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    if spec.inference.gpus == 0:
        threads = str(_cpus())
        defaults |= {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": _CPU_CACHE_GIB,
            # The engine may run the model in its own process: vLLM would start a second one only to pin its
            # threads to cores, which costs 20 s of imports, and a container's cores are not its own anyway.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": threads,
            "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait leave the core to the trainer, which may share the node
            # --enforce-eager is about the model; parts of the sampler would still be compiled on first use, which
            # takes half a minute and a C++ compiler.
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
        }
    added = {name: value for name, value in defaults.items() if name not in given}
    added["VLLM_SERVER_DEV_MODE"] = "1"
    if takes_adapters(planned(spec)):
        added["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    plugins = given.get("VLLM_PLUGINS")
    if plugins is not None and PLUGIN not in plugins.split(","):
        added["VLLM_PLUGINS"] = ",".join(filter(None, [plugins, PLUGIN]))
    return added


def _cpus() -> int:
    """CPUs that this container may use, by its cgroup's quota and its affinity; at least 1."""
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cpus
    return cpus if quota == "max" else max(1, min(cpus, round(int(quota) / int(period))))
