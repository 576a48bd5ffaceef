"""What Axolotl finds by the names in config.yaml.

    roll_out   trl.rollout_func: sends the weights after an optimizer step, and posts each prompt's row
    reward     trl.reward_funcs: hands on the environment's reward
    Reports    a plugin: steps on GET /progress, and a checkpoint after SIGTERM

With spec.rollout.maxStaleness 0 the gateway lets vLLM answer with the version that was sent last alone: every sample is
of the weights that train on it. A rollout that failed for good has no reward and no token in the loss.
"""

import shutil
from typing import Any, ClassVar

from axolotl.integrations.base import BasePlugin
from contract import Pod, Rollout, Rollouts, StoppedError, Task, Weights
from transformers import TrainerCallback


class Environment:
    """The run's agents and vLLM, for Axolotl's trainer."""

    current: ClassVar["Environment"]  # Axolotl knows functions and plugins by name alone, so it can't be handed over

    def __init__(self, pod: Pod, weights: Weights, rows: list[Task], most_tokens: int | None) -> None:
        self.pod = pod
        self._weights = weights
        self._rows = rows
        self._rollouts = Rollouts(pod, most_tokens)
        self._sent_at: int | None = None  # step
        self._folders = pod.root / "scratch" / "weights"
        self._done = 0

    def roll_out(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """One completion for each prompt; each prompt is the number of a row, as often as its group has rollouts."""
        if self._sent_at != trainer.state.global_step:
            self._send(trainer)
        self.pod.report(phase="waiting_for_rollouts")
        results = self._rollouts.run([self._rows[int(prompt)] for prompt in prompts])
        self._done += sum(result is not None for result in results)
        self.pod.report(phase="training", rollouts=self._done, failed_rollouts=self._rollouts.failed)
        end = trainer.processing_class.eos_token_id
        failed = Rollout([end], [end], [0], [0.0], 0.0)  # outside the loss
        known = [result or failed for result in results]
        return {
            "prompt_ids": [one.prompt_ids for one in known],
            "completion_ids": [one.completion_ids for one in known],
            "logprobs": [one.log_probs for one in known],
            "env_mask": [one.mask for one in known],
            "reward": [result.reward if result else None for result in results],
        }

    def _send(self, trainer: Any) -> None:
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


def roll_out(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
    """What Axolotl calls for completions."""
    return Environment.current.roll_out(prompts, trainer)


def reward(prompts: list[str], reward: list[float | None], **_: Any) -> list[float | None]:
    """The environment's rewards; None doesn't count in its group."""
    return reward


class Reports(BasePlugin):  # type: ignore[misc]
    """Puts Report into Axolotl's trainer."""

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[Any]:
        """Asked before the trainer is made."""
        return [Report(Environment.current.pod)]


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
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A checkpoint is written."""
        if self._pod.stopping.is_set():
            raise StoppedError  # not should_training_stop: Axolotl would save the model as if it were the final one

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """A step was measured."""
        if logs and "reward" in logs:
            self._pod.report(reward=logs["reward"])
