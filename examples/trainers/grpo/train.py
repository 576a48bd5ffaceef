"""TRL's GRPOTrainer as it is, as the trainer of a run: its rollout_func posts rows to the run's agents.

    rollout_func   after an optimizer step: the weights go to vLLM as the next version
                   POST /run of each prompt's row ─► prompt_ids, completion_ids, logprobs, env_mask, reward
    reward_funcs   hands on the environment's reward

spec.trainer.config has the names of TRL's GRPOConfig. With spec.rollout.maxStaleness 0 the gateway lets vLLM answer
with the version that was sent last alone: every sample is of the weights that train on it. So GRPOTrainer needs no
log-probabilities of the sampling, and doesn't use those that it gets (it would only with its own vLLM client).

One process on one node, on a GPU or on the CPU. A rollout that failed for good has no reward and no token in the loss.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from contract import Pod, RefusedError, Rollout, Rollouts, StoppedError, Task, Weights, end_with, open_port, tasks
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

_SET_HERE = ("output_dir", "use_vllm", "report_to", "use_cpu")


class Environment:
    """What GRPOTrainer calls for rollouts and rewards."""

    def __init__(self, pod: Pod, weights: Weights, rows: list[Task], most_tokens: int, end_token: int) -> None:
        """`end_token`: stands for a rollout that failed, outside the loss."""
        self._pod = pod
        self._weights = weights
        self._rows = rows
        self._end_token = end_token
        self._rollouts = Rollouts(pod, most_tokens)
        self._sent_at: int | None = None  # step
        self._folders = pod.root / "scratch" / "weights"
        self.done = 0

    def roll_out(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """One completion for each prompt; each prompt is the number of a row, as often as its group has rollouts."""
        if self._sent_at != trainer.state.global_step:
            self._send(trainer)
        self._pod.report(phase="waiting_for_rollouts")
        results = self._rollouts.run([self._rows[int(prompt)] for prompt in prompts])
        self.done += sum(result is not None for result in results)
        self._pod.report(phase="training", rollouts=self.done, failed_rollouts=self._rollouts.failed)
        failed = Rollout([self._end_token], [self._end_token], [0], [0.0], 0.0)
        known = [result or failed for result in results]
        return {
            "prompt_ids": [one.prompt_ids for one in known],
            "completion_ids": [one.completion_ids for one in known],
            "logprobs": [one.log_probs for one in known],
            "env_mask": [one.mask for one in known],
            "reward": [result.reward if result else None for result in results],
        }

    @staticmethod
    def reward(prompts: list[str], reward: list[float | None], **_: Any) -> list[float | None]:
        """The environment's rewards; None doesn't count in its group."""
        return reward

    def _send(self, trainer: GRPOTrainer) -> None:
        step = trainer.state.global_step
        folder = self._folders / str(step)
        shutil.rmtree(folder, ignore_errors=True)
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained(folder)
        label = self._weights.send(sorted(folder.glob("*.safetensors")))
        print(f"step {step}: vLLM holds {label or 'the weights that it started with'}", flush=True)
        self._sent_at = step
        for old in self._folders.iterdir():
            if old != folder:
                shutil.rmtree(old)


class Report(TrainerCallback):  # type: ignore[misc]
    """Steps on GET /progress, and a checkpoint after SIGTERM."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Training begins, maybe from a checkpoint."""
        self._pod.report(step=state.global_step, max_steps=state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step is done."""
        self._pod.report(phase="training", step=state.global_step)
        if self._pod.stopping.is_set():
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """TRL measured a step."""
        if logs and "reward" in logs:
            self._pod.report(reward=logs["reward"])


def train(pod: Pod, weights: Weights) -> None:
    """To the last step, from the last checkpoint where there is one. The final model is in checkpoints/model."""
    if pod.nodes != 1 or pod.spec["trainer"]["processesPerNode"] != 1:
        raise RefusedError("this trainer is one process: leave out spec.trainer.nodes and processesPerNode")
    if pod.spec["rollout"]["maxStaleness"] != 0:
        raise RefusedError("this trainer corrects no stale samples: set spec.rollout.maxStaleness to 0")
    model = str(pod.root / "model")
    settings = grpo_config(pod)
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    pod.report(phase="waiting_for_servers")
    pod.wait_for_agents()
    rows = tasks(pod)
    environment = Environment(pod, weights, rows, settings.max_completion_length, tokenizer.eos_token_id)
    trainer = GRPOTrainer(
        model=model,
        args=settings,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(len(rows))]}),
        reward_funcs=environment.reward,
        rollout_func=environment.roll_out,
        callbacks=[Report(pod)],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(settings.output_dir))
    if pod.stopping.is_set():
        raise StoppedError
    trainer.save_model(str(pod.checkpoints / "model"))


def grpo_config(pod: Pod) -> GRPOConfig:
    """TRL's settings, by the names of spec.trainer.config. Raises RefusedError: every attempt would find the same."""
    taken = [name for name in _SET_HERE if name in pod.config]
    if taken:
        raise RefusedError(f"spec.trainer.config.{taken[0]} is set by the trainer: leave it out")
    folder = pod.checkpoints / "grpo"
    Path(folder).mkdir(parents=True, exist_ok=True)
    on_cpu = not torch.cuda.is_available()
    defaults = {"bf16": not on_cpu, "logging_steps": 1, "temperature": pod.temperature}
    try:
        return GRPOConfig(
            **{**defaults, **pod.config}, output_dir=str(folder), use_vllm=False, report_to=[], use_cpu=on_cpu
        )
    except (TypeError, ValueError) as error:
        raise RefusedError(f"spec.trainer.config: TRL's GRPOConfig says: {error}") from error


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
