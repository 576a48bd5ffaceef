"""Axolotl as the trainer of a run: its GRPO trainer takes batches from the run's agents (gym_plugin.py).

spec.trainer.config is Axolotl's YAML, without what a run settles: the model, the data, the folder, and where answers
come from. With spec.rollout.maxStaleness 0 the gateway lets vLLM answer with the version that was sent last alone:
every sample is of the weights that train on it.

One process on one node, on a GPU or on the CPU, and all weights: no adapter.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml
from contract import Pod, RefusedError, StoppedError, Weights, end_with, open_port, tasks

_SET_HERE = ("base_model", "rl", "plugins", "datasets", "output_dir", "auto_resume_from_checkpoints")
_SET_HERE_OF_TRL = ("use_vllm", "vllm_mode", "reward_funcs", "temperature", "use_data_producer", "async_prefetch")


def configuration(pod: Pod) -> dict[str, Any]:
    """Axolotl's. Raises RefusedError: every attempt would find the same."""
    config = pod.config
    config.pop("temperature", None)
    trl = dict(config.pop("trl", None) or {})
    taken = [name for name in _SET_HERE if name in config] + [f"trl.{name}" for name in _SET_HERE_OF_TRL if name in trl]
    if taken:
        raise RefusedError(f"spec.trainer.config.{taken[0]} is set by the trainer: leave it out")
    if config.get("adapter"):
        raise RefusedError("spec.trainer.config.adapter: this trainer sends all weights: leave it out")
    return {
        **config,
        "base_model": str(pod.root / "model"),
        "rl": "grpo",
        "plugins": ["gym_plugin.GymPlugin"],
        "datasets": [{"path": "rows-of-the-run", "type": "chat_template"}],  # its schema wants one; the plugin has them
        "output_dir": str(pod.checkpoints / "axolotl"),
        "auto_resume_from_checkpoints": True,
        "trl": {
            **trl,
            "use_vllm": False,
            "use_data_producer": True,  # the trainer whose batches come from one
            "reward_funcs": ["gym_plugin.reward"],
            "temperature": pod.temperature,
        },
    }


def train(pod: Pod, weights: Weights) -> None:
    """To the last step, from the last checkpoint where there is one. The final model is in checkpoints/model."""
    if pod.nodes != 1 or pod.spec["trainer"]["processesPerNode"] != 1:
        raise RefusedError("this trainer is one process: leave out spec.trainer.nodes and processesPerNode")
    if pod.spec["rollout"]["maxStaleness"] != 0:
        raise RefusedError("this trainer corrects no stale samples: set spec.rollout.maxStaleness to 0")
    settings = configuration(pod)
    pod.report(phase="waiting_for_servers")
    pod.wait_for_agents()
    folder = pod.root / "scratch" / "axolotl"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"  # it tells its makers of each run otherwise
    os.chdir(folder)  # Axolotl writes beside itself what it prepares
    # Late: they take a while, and the port should be open by then.
    import gym_plugin
    from axolotl.cli.args import TrainerCliArgs
    from axolotl.cli.config import load_cfg
    from axolotl.cli.train import do_train

    gym_plugin.use(pod, weights, tasks(pod))
    Path("axolotl.yaml").write_text(yaml.safe_dump(settings))
    try:
        loaded = load_cfg("axolotl.yaml")
    except ValueError as error:  # pydantic's own is one
        raise RefusedError(f"spec.trainer.config: Axolotl says: {error}") from error
    do_train(loaded, TrainerCliArgs())
    if pod.stopping.is_set():
        raise StoppedError
    final = pod.checkpoints / "model"
    shutil.rmtree(final, ignore_errors=True)
    shutil.copytree(pod.checkpoints / "axolotl", final, ignore=shutil.ignore_patterns("checkpoint-*"))


def main() -> int:
    """Returns the exit code."""
    pod = Pod.read()
    weights = Weights(pod)
    open_port(pod, weights)
    return end_with(pod, lambda: train(pod, weights))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads may still wait for rollouts
