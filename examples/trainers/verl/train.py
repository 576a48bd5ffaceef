"""verl as it is, as the trainer of a run: `python -m verl.trainer.main_ppo` with verl.yaml, as a process of this one.

    main_ppo ─► Ray ─► actor       after a step: the weights, as files ─┐
                   └─► agent loop  a row's number ──────────────────────┴─► rpc.py ─► here ─► agents, vLLM

The contract is spoken here alone; gymtrain_verl.py has the classes that verl finds by its configuration. Settings of
spec.trainer.config are verl's own, in their places (actor_rollout_ref, algorithm, ...), over those in verl.yaml.

verl's synchronous trainer, and spec.rollout.maxStaleness 0: every sample is of the weights that train on it. One pod,
with as many processes as it has GPUs, or one on the CPU. verl writes checkpoints by trainer.save_freq alone: a signal
loses the steps since the last.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import torch
from contract import Pod, RefusedError, Rollout, Rollouts, Weights, end_with, open_port, tasks
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rpc import serve

_HERE = Path(__file__).resolve().parent
_SET_HERE = ("actor_rollout_ref.rollout.temperature", "trainer.n_gpus_per_node", "trainer.nnodes", "trainer.device")
_END_SECONDS = 10.0  # for which Ray may end its processes


class TrainerService:
    """What verl's processes ask (rpc.Service): runs rollouts and sends weights for verl's processes."""

    def __init__(self, pod: Pod, weights: Weights, most_tokens: int) -> None:
        self._pod = pod
        self._weights = weights
        self._tasks = tasks(pod)
        self._rollouts = Rollouts(pod, most_tokens)
        self._folders = pod.root / "scratch" / "weights"
        self._lock = threading.Lock()  # of the counters
        self._rewards: list[float] = []  # since the last step
        self._done = 0

    def rows(self) -> int:
        return len(self._tasks)

    def messages(self, number: int) -> object:
        return self._tasks[number][1]["responses_create_params"]["input"]

    def roll_out(self, number: int) -> Rollout | None:
        [done] = self._rollouts.run([self._tasks[number]])
        with self._lock:
            if done is not None:
                self._done += 1
                self._rewards.append(done.reward)
            self._pod.report(phase="training", rollouts=self._done, failed_rollouts=self._rollouts.failed)
        return done

    def new_folder(self, step: int) -> str:
        folder = self._folders / str(step)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return str(folder)

    def send(self, step: int) -> None:
        label = self._weights.send(sorted((self._folders / str(step)).glob("*.safetensors")))
        print(f"step {step}: vLLM holds {label or 'the weights that it started with'}", flush=True)
        with self._lock:
            if self._rewards:
                self._pod.report(reward=sum(self._rewards) / len(self._rewards))
            self._rewards = []
            self._pod.report(phase="waiting_for_rollouts", step=step)
        for old in self._folders.iterdir():
            if old.name != str(step):
                shutil.rmtree(old)

    def save(self, folder: Path) -> None:
        """The weights that were sent last, as a model's folder."""
        [last] = self._folders.iterdir()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._pod.root / "model", folder, ignore=shutil.ignore_patterns("*.safetensors*", "*.bin*"))
        shutil.copytree(last, folder, dirs_exist_ok=True)


def train(pod: Pod, weights: Weights) -> None:
    """To the last step, from the last checkpoint where there is one. The final model is in checkpoints/model."""
    if pod.nodes != 1:
        raise RefusedError("this trainer is one pod: leave out spec.trainer.nodes")
    if pod.spec["rollout"]["maxStaleness"] != 0:
        raise RefusedError("verl's synchronous trainer wants no stale samples: set spec.rollout.maxStaleness to 0")
    arguments, config = settings(pod)
    pod.report(phase="waiting_for_servers")
    pod.wait_for_agents()
    service = TrainerService(pod, weights, config.data.max_response_length)
    epochs = service.rows() // config.data.train_batch_size * config.trainer.total_epochs
    pod.report(max_steps=config.trainer.total_training_steps or epochs)
    variables = {
        **serve(service),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_HERE), os.environ.get("PYTHONPATH")))),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    if not torch.cuda.is_available():
        engine = {"VERL_ENGINE_DEVICE": "cuda"}  # the name by which verl knows FSDP
        variables |= {"VERL_USE_EXTERNAL_MODULES": "on_cpu", "VERL_PLATFORM": "cpu", **engine}
    run(pod, [sys.executable, "-m", "verl.trainer.main_ppo", f"--config-path={_HERE}", *arguments], variables)
    service.save(pod.checkpoints / "model")


def settings(pod: Pod) -> tuple[list[str], DictConfig]:
    """main_ppo's arguments, and what it makes of them. Raises RefusedError: every attempt would find the same."""
    given = list(_flat({field: value for field, value in pod.config.items() if field != "temperature"}))
    taken = [field for field, _ in given if field in _SET_HERE]
    if taken:
        raise RefusedError(f"spec.trainer.config: {taken[0]} is set by the trainer: leave it out")
    verl = importlib.util.find_spec("verl")
    assert verl is not None
    assert verl.submodule_search_locations is not None
    on_gpu = torch.cuda.is_available()
    name = "verl" if on_gpu else "on_cpu"
    overrides = [
        f"hydra.searchpath=[file://{verl.submodule_search_locations[0]}/trainer/config]",
        *(f"{field}={json.dumps(value, ensure_ascii=False)}" for field, value in given),
        f"actor_rollout_ref.rollout.temperature={pod.temperature}",
        f"trainer.n_gpus_per_node={torch.cuda.device_count() if on_gpu else 1}",
    ]
    try:
        with hydra.initialize_config_dir(str(_HERE), version_base=None):
            config = hydra.compose(name, overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise RefusedError(f"spec.trainer.config: {error}") from error
    return [f"--config-name={name}", *overrides], config


def _flat(config: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def run(pod: Pod, command: list[str], variables: dict[str, str]) -> None:
    """Runs verl to its end. Raises StoppedError on SIGTERM, and RuntimeError where it fails."""
    folder = pod.root / "scratch" / "verl"
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **variables})
    try:
        while process.poll() is None:
            pod.wait(0.5)
    finally:
        process.terminate()  # then Ray's driver ends what it started
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        process.kill()
    if process.returncode != 0:
        raise RuntimeError(f"verl ended with exit code {process.returncode}")


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
