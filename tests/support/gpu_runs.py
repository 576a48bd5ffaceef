"""Runs for a cluster with GPUs, made from the quickstart."""

from typing import Any

from tests.support.runs import example

_CHECKED = {"name": "GYMTRAIN_CHECK_SAMPLES", "value": "0.05"}  # each takes the trainer half a second of its CPUs

# ... of as many threads as it can use. With one for each core, two runs on a machine wait for each other's.
_THREADS = {"name": "OMP_NUM_THREADS", "value": "4"}


def gpu_run(name: str, transport: str = "Auto", **trainer_config: Any) -> dict[str, Any]:
    """The quickstart with vLLM on one GPU and the trainer on another, or on a share of the same.

    vLLM's and torch's settings are those of a user who sets none: CUDA graphs and torch.compile are on. The trainer
    recomputes what vLLM said of some samples, and the pods share a process namespace, so that a part can be killed.
    """
    run = example("quickstart.yaml", name)
    spec = run["spec"]
    spec["inference"].update(gpus=1, args=["--max-model-len=512", "--gpu-memory-utilization=0.15"])
    spec["inference"]["template"] = {"spec": {"shareProcessNamespace": True}}
    spec["trainer"].update(gpus=1)
    spec["trainer"]["config"].update(trainer_config)
    containers = [{"name": "trainer", "env": [_CHECKED, _THREADS, {"name": "NCCL_DEBUG", "value": "INFO"}]}]
    spec["trainer"]["template"] = {"spec": {"shareProcessNamespace": True, "containers": containers}}
    spec["weightSync"] = {"transport": transport}
    if transport == "LoRAFilesystem":
        spec["model"]["lora"] = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    return run
