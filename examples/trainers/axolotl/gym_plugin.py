"""What Axolotl calls: a plugin whose data producer posts rows to the run's agents.

    load_datasets         the rows' numbers in place of prompts: the agents have the rows
    post_trainer_create   the producer below, in place of the one that generates
    produce               after an optimizer step: the weights go to vLLM as the next version
                          POST /run of each row ─► a batch of tokens, masks and rewards

Axolotl's own plugin for NeMo Gym does the like for servers that it starts itself. Why it isn't used here:
docs/own-trainer.md.
"""

import shutil
from typing import Any

import torch
from axolotl.common.datasets import TrainDatasetMeta
from axolotl.core.trainers.grpo.async_trainer import GRPODataProducer, RolloutDataset
from axolotl.integrations.base import BasePlugin
from contract import Pod, RefusedError, Rollout, Rollouts, Task, Weights
from datasets import Dataset
from transformers import TrainerCallback
from trl.trainer.utils import pad

_PART_OF_A_RUN: list[tuple[Pod, Weights, list[Task]]] = []


def use(pod: Pod, weights: Weights, rows: list[Task]) -> None:
    """What the plugin, which Axolotl makes itself, works with."""
    _PART_OF_A_RUN[:] = [(pod, weights, rows)]


def reward(completions: list[str], env_reward: list[float], **_: Any) -> list[float]:
    """The environment's rewards; a function of `trl.reward_funcs`."""
    return env_reward


class GymPlugin(BasePlugin):  # type: ignore[misc]
    """Named in `plugins` of Axolotl's configuration."""

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> TrainDatasetMeta:
        """A prompt for each row, of which only the number is read."""
        _, _, rows = _PART_OF_A_RUN[0]
        prompts = [[{"role": "user", "content": str(number)}] for number in range(len(rows))]
        return TrainDatasetMeta(train_dataset=Dataset.from_dict({"prompt": prompts}), total_num_steps=cfg.max_steps)

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Puts our producer in the place of the one that generates."""
        made = trainer.data_producer
        if type(made) is not GRPODataProducer:
            raise RefusedError(f"Axolotl made a {type(made).__name__}: leave trl.async_prefetch out")
        producer = Producer(
            made.config,
            made._dataset,
            num_generations=made._num_generations,
            generation_batch_size=made._generation_batch_size,
            train_batch_size=made._train_batch_size,
            steps_per_generation=made._steps_per_generation,
            shuffle_dataset=made._shuffle_dataset,
            seed=made._seed,
        )
        producer.set_trainer(trainer)
        trainer.data_producer = producer

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[TrainerCallback]:
        """Steps on GET /progress, and a checkpoint after SIGTERM."""
        return [Report(_PART_OF_A_RUN[0][0])]


class Producer(GRPODataProducer):  # type: ignore[misc]
    """Makes batches of rollouts, each of the weights that train on it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pod, self._weights, self._rows = _PART_OF_A_RUN[0]
        self._rollouts: Rollouts | None = None
        self._folders = self._pod.root / "scratch" / "weights"
        self._sent_at: int | None = None  # step
        self.done = 0

    def produce(self, model: Any, global_step: int, **_: Any) -> RolloutDataset:
        """One batch, as AsyncGRPOTrainer scores it."""
        trainer = self._trainer
        if self._rollouts is None:
            self._rollouts = Rollouts(self._pod, trainer.max_completion_length)
        if self._sent_at != global_step:
            self._send(global_step)
        try:
            inputs = next(self._prompt_iter)
        except StopIteration:
            self._prompt_iter = iter(self._prompt_dl)
            inputs = next(self._prompt_iter)
        self._pod.report(phase="waiting_for_rollouts")
        results = self._rollouts.run([self._rows[int(one["prompt"][-1]["content"])] for one in inputs])
        self.done += sum(result is not None for result in results)
        self._pod.report(phase="training", rollouts=self.done, failed_rollouts=self._rollouts.failed)
        return RolloutDataset(self._batch(inputs, results))

    def _batch(self, inputs: list[dict[str, Any]], results: list[Rollout | None]) -> dict[str, Any]:
        """A failed rollout is in it with no token in the loss. As Axolotl takes a missing reward for 0, it has the mean
        of its group's, by which nobody's advantage moves."""
        trainer, tokenizer = self._trainer, self._trainer._tokenizer
        end = tokenizer.eos_token_id
        rollouts = [result or Rollout([end], [end], [0], [0.0], 0.0) for result in results]
        rewards = [one.reward for one in rollouts]
        for start in range(0, len(results), self._num_generations):
            group = range(start, min(start + self._num_generations, len(results)))
            scored = [rewards[place] for place in group if results[place] is not None]
            for place in group:
                if results[place] is None and scored:
                    rewards[place] = sum(scored) / len(scored)
        told = [{**one, "env_reward": reward} for one, reward in zip(inputs, rewards, strict=True)]
        completions = [one.completion_ids for one in rollouts]

        def padded(lists: list[list[Any]], value: float, side: str = "right", kind: Any = torch.long) -> torch.Tensor:
            device = trainer.accelerator.device
            return pad([torch.tensor(one, dtype=kind, device=device) for one in lists], value, padding_side=side)

        completion_mask = padded([[1] * len(one) for one in completions], 0)
        return {
            "prompt_ids": padded([one.prompt_ids for one in rollouts], tokenizer.pad_token_id, "left"),
            "prompt_mask": padded([[1] * len(one.prompt_ids) for one in rollouts], 0, "left"),
            "completion_ids": padded(completions, tokenizer.pad_token_id),
            "completion_mask": completion_mask,
            "tool_mask": padded([one.mask for one in rollouts], 0),
            "sampling_per_token_logps": padded([one.log_probs for one in rollouts], 0.0, kind=torch.float32),
            "num_items_in_batch": completion_mask.sum(),
            "advantages": torch.zeros(len(rollouts), device=trainer.accelerator.device),
            "_pending_policy_logps": True,
            "_deferred_inputs": told,
            "_deferred_prompts": [one["prompt"] for one in told],
            "_deferred_completions": trainer.processing_class.batch_decode(completions, skip_special_tokens=True),
            "_deferred_completion_ids_list": completions,
            "_rank0_only": False,
        }

    def _send(self, step: int) -> None:
        folder = self._folders / str(step)
        shutil.rmtree(folder, ignore_errors=True)
        self._trainer.accelerator.unwrap_model(self._trainer.model).save_pretrained(folder)
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
        """A step was measured."""
        if logs and "reward" in logs:
            self._pod.report(reward=logs["reward"])
