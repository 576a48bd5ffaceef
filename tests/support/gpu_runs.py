"""Runs for a cluster with GPUs, made from the quickstart."""

from typing import Any

from dev.gpu.vllm_server import NO_MULTICAST
from tests.support.runs import example

_CHECKED = {"name": "GYMTRAIN_CHECK_SAMPLES", "value": "0.05"}  # each takes the trainer half a second of its CPUs

# ... of as many threads as it can use. With one for each core, two runs on a machine wait for each other's.
_THREADS = {"name": "OMP_NUM_THREADS", "value": "4"}
_NO_MULTICAST = [{"name": name, "value": value} for name, value in NO_MULTICAST.items()]


def gpu_run(name: str, transport: str = "Auto", **trainer_config: Any) -> dict[str, Any]:
    """The quickstart with vLLM on one GPU and the trainer on another, or on a share of the same.

    vLLM's and torch's settings are those of a user who sets none: CUDA graphs and torch.compile are on. The trainer
    recomputes what vLLM said of some samples, and the pods share a process namespace, so that a part can be killed.
    """
    run = example("quickstart.yaml", name)
    _on_gpus(run["spec"], transport, ["--max-model-len=512"], trainer_config)
    if transport == "LoRAFilesystem":
        target = ["q_proj", "k_proj", "v_proj", "o_proj"]
        run["spec"]["model"]["lora"] = {"r": 8, "lora_alpha": 16, "target_modules": target}
    return run


def gpu_run_with_tools(name: str, transport: str) -> dict[str, Any]:
    """The workplace assistant with the quickstart's model, which is too small to be good at it, for a few steps."""
    run, small = example("workplace-assistant.yaml", name), example("quickstart.yaml", name)
    spec = run["spec"]
    spec["model"] = small["spec"]["model"]
    spec["trainer"]["checkpoint"] = small["spec"]["trainer"]["checkpoint"]
    spec["rollout"].update(maxConcurrent=16, timeoutSeconds=120)
    sizes = {"max_steps": 5, "num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    args = [arg for arg in spec["inference"]["args"] if not arg.startswith("--max-model-len=")]
    settings = {"max_completion_length": 64, "save_steps": 5, **sizes}
    _on_gpus(spec, transport, ["--max-model-len=4096", *args], settings)
    return run


def _on_gpus(spec: dict[str, Any], transport: str, args: list[str], trainer_config: dict[str, Any]) -> None:
    spec["inference"].update(gpus=1, args=[*args, "--gpu-memory-utilization=0.15"])
    inference = [{"name": "inference", "env": _NO_MULTICAST}]
    spec["inference"]["template"] = {"spec": {"shareProcessNamespace": True, "containers": inference}}
    spec["trainer"].update(gpus=1)
    spec["trainer"]["config"].update(trainer_config)
    told = [_CHECKED, _THREADS, {"name": "NCCL_DEBUG", "value": "INFO"}, *_NO_MULTICAST]
    trainer = [{"name": "trainer", "env": told}]
    spec["trainer"]["template"] = {"spec": {"shareProcessNamespace": True, "containers": trainer}}
    spec["weightSync"] = {"transport": transport}
