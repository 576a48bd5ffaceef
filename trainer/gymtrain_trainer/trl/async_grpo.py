"""AsyncGRPOTrainer with steps of whole groups, and an off-policy correction.

What it changes of TRL's trainer, and nothing else:

| method | TRL's | here |
|---|---|---|
| get_train_dataloader | samples from a queue, a micro-batch ahead | the groups of one step (batches.py) |
| training_step | one micro-batch | the micro-batches of a step, of which there may be more where rollouts forked |
| train | goes on from a checkpoint without its random numbers | with them |
| save_model | nothing of a checkpoint that is sharded | what says which model the checkpoint is of |
| compute_loss | PPO's clip against the sampler | the same; with a correction, each token's gradient is scaled before |
"""

import contextlib
from functools import partial
from typing import Any

import torch
from accelerate.utils import is_peft_model
from trl.experimental.async_grpo import AsyncGRPOTrainer

from gymtrain_trainer.trl import internals
from gymtrain_trainer.trl.batches import StepLoader, StepMaker
from gymtrain_trainer.trl.correction import gradient_scale, with_gradient
from gymtrain_trainer.trl.settings import StepSettings
from gymtrain_trainer.trl.trained import TrainedSamples


class GroupGRPOTrainer(AsyncGRPOTrainer):  # type: ignore[misc]  # TRL is not installed where types are checked
    """See the module."""

    # compute_loss divides by the number of micro-batches; without this transformers 5.19 divides by it once more.
    loss_is_scaled_for_ga = True

    def __init__(self, *args: Any, steps: StepSettings, **kwargs: Any) -> None:
        """`steps`: of the run; the rest is AsyncGRPOTrainer's."""
        super().__init__(*args, **kwargs)
        self._steps = steps
        self._resumed_from: str | None = None
        self.trained = TrainedSamples(tokens=steps.token_records) if steps.records else None
        if not steps.correction.clips:
            self.epsilon_low = self.epsilon_high = float("inf")

    def train(self, resume_from_checkpoint: str | None = None, **more: Any) -> Any:
        """TRL's; what is drawn at random goes on where it was when the checkpoint was saved."""
        self._resumed_from = resume_from_checkpoint
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **more)

    def get_train_dataloader(self) -> Any:
        """The steps; the queue is read on rank 0 alone."""
        processes = self.accelerator.num_processes
        total = self.args.max_steps if self.args.max_steps > 0 else None
        restore = partial(internals.restore_random_numbers, self, self._resumed_from)
        if not self.accelerator.is_main_process:
            return StepLoader(None, lambda: self.state.global_step, processes, total, restore)
        maker = StepMaker(self.rollout_worker.rollouts, self._steps.batch, self._steps.loss, self.trained)
        internals.tell_wait_and_groups(self, maker)
        return StepLoader(
            lambda: maker.step(self.model_version), lambda: self.state.global_step, processes, total, restore
        )

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of all micro-batches of a step.

        DDP exchanges gradients at the last. FSDP does at each: what it has not exchanged it keeps whole, so that each
        rank would hold the gradients of the whole model from the first micro-batch to the last.
        """
        micro_batches = inputs["micro_batches"]
        self.current_gradient_accumulation_steps = len(micro_batches)
        total: torch.Tensor | None = None
        for number, micro_batch in enumerate(micro_batches, 1):
            exchanges = self.is_fsdp_enabled or number == len(micro_batches)
            with contextlib.nullcontext() if exchanges else self.accelerator.no_sync(model):
                loss = super().training_step(model, micro_batch, num_items_in_batch)
            total = loss if total is None else total + loss
        assert total is not None
        if self.trained is not None:
            self.trained.gather()
        return total

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """transformers': of a checkpoint, only where it isn't sharded; there it has config and tokenizer all the same.

        Its weights are beside the optimizer's state then, by which training resumes.
        """
        super().save_model(output_dir, _internal_call)
        folder = output_dir or self.args.output_dir
        if not self.args.should_save or not self.is_fsdp_enabled:
            return
        if "SHARDED_STATE_DICT" not in str(self.accelerator.state.fsdp_plugin.state_dict_type):
            return
        model = self.accelerator.unwrap_model(self.model)
        for config in model.peft_config.values() if is_peft_model(model) else [model.config]:
            config.save_pretrained(folder)
        self.processing_class.save_pretrained(folder)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """TRL's loss of one row, by tokens whose gradients are corrected."""
        if self.trained is not None:
            model = self.trained.watched(model, inputs)
        correction = self._steps.correction
        if correction.mode == "None":
            return super().compute_loss(model, inputs, *args, **kwargs)
        trained = inputs["token_index"] >= 0
        where, segment_id = inputs["token_index"][trained], inputs["segment_id"][trained]
        old = inputs["old_log_probs"][trained]

        def forward(**arguments: Any) -> Any:
            outputs = model(**arguments)
            log_probs = outputs.log_probs.flatten()[where]
            outputs.log_probs = with_gradient(log_probs, gradient_scale(log_probs, old, segment_id, correction))
            outputs.entropy = outputs.entropy.flatten()[where]
            return outputs

        # The forward picks the trained tokens out, as one position may stand for tokens of several samples.
        picked = torch.full_like(inputs["token_index"], -1)
        picked[trained] = torch.arange(where.numel(), device=where.device, dtype=picked.dtype)
        return super().compute_loss(forward, inputs | {"token_index": picked}, *args, **kwargs)
