"""Axolotl's own GRPO training as the trainer of a run: its schema, its model loader and its trainer, as they are.

    config.yaml, spec.trainer.config ─► load_cfg ─► axolotl.train.train
                                                    └─ by the names in config.yaml: gymtrain_axolotl.py ─► agents, vLLM

spec.trainer.config has Axolotl's settings in their places, over those in config.yaml. One process on one node, on a GPU
or on the CPU.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from contract import Pod, RefusedError, Weights, end_with, open_port, tasks

_TRL = ("temperature", "use_vllm", "rollout_func", "reward_funcs", "async_prefetch", "use_data_producer")
_SET_HERE = ("base_model", "output_dir", "rl", "plugins", "datasets", *(f"trl.{name}" for name in _TRL))


def train(pod: Pod, weights: Weights) -> None:
    """To the last step, from the last checkpoint where there is one. The final model is in checkpoints/model."""
    if pod.nodes != 1 or pod.spec["trainer"]["processesPerNode"] != 1:
        raise RefusedError("this trainer is one process: leave out spec.trainer.nodes and processesPerNode")
    if pod.spec["rollout"]["maxStaleness"] != 0:
        raise RefusedError("this trainer corrects no stale samples: set spec.rollout.maxStaleness to 0")
    given = settings(pod)
    # Axolotl would report the run to its makers, and a library that it loads would look for kernels on the hub.
    os.environ |= {"AXOLOTL_DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    # Not at the top: they read these variables, and take so long that the port has to be open before.
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import TrainDatasetMeta
    from axolotl.train import train as train_by_axolotl
    from axolotl.utils.dict import DictDefault
    from datasets import Dataset
    from gymtrain_axolotl import Environment

    try:
        config = load_cfg(DictDefault(given))
    except ValueError as error:
        raise RefusedError(f"spec.trainer.config: Axolotl says: {error}") from error
    for name in _names(given):
        if name not in set(_names(config)):  # Axolotl leaves out what it doesn't know, and says nothing
            raise RefusedError(f"spec.trainer.config: Axolotl knows no {name}")
    pod.report(phase="waiting_for_servers")
    pod.wait_for_agents()
    rows = tasks(pod)
    Environment.current = Environment(pod, weights, rows, config.trl.max_completion_length)
    numbers = Dataset.from_dict({"prompt": [str(number) for number in range(len(rows))]})
    model, tokenizer, _ = train_by_axolotl(cfg=config, dataset_meta=TrainDatasetMeta(train_dataset=numbers))
    for part in (model, tokenizer):  # Axolotl saves them too, among its checkpoints
        part.save_pretrained(pod.checkpoints / "model")


def settings(pod: Pod) -> dict[str, Any]:
    """Axolotl's configuration. Raises RefusedError: every attempt would find the same."""
    given = pod.config
    given.pop("temperature", None)  # the gateway's, which is trl.temperature here
    taken = [name for name in _names(given) if name in _SET_HERE]
    if taken:
        raise RefusedError(f"spec.trainer.config: {taken[0]} is set by the trainer: leave it out")
    if given.get("adapter"):
        raise RefusedError("this trainer sends whole weights: leave out spec.trainer.config.adapter")
    found = yaml.safe_load(Path(__file__).with_name("config.yaml").read_text())
    trl = {**found["trl"], **given.get("trl", {}), "temperature": pod.temperature}
    folders = {"base_model": str(pod.root / "model"), "output_dir": str(pod.checkpoints / "axolotl")}
    return {**found, **given, **folders, "trl": trl}


def _names(config: dict[str, Any]) -> Iterator[str]:
    """Of the settings that are set, at the top and below trl."""
    yield from (name for name, value in config.items() if value is not None)
    yield from (f"trl.{name}" for name, value in (config.get("trl") or {}).items() if value is not None)


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
