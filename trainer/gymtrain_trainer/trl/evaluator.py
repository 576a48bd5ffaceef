"""What takes the trainer's place in a run that evaluates without training (`spec.evaluation.withoutTraining`).

For each model: its evaluation is announced, the weights go from its files to vLLM, and the rollouts follow:

    step N ends ─► wait for the evaluation before ─► weights of N, file by file ─► vLLM ─► parity ─► evaluation of N

The files' names and shapes are those that vLLM reads by itself, so no model is made here, but where parity is checked.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from gymtrain_trainer.checkpoints.evaluated import EvaluatedModel, evaluated_models
from gymtrain_trainer.framework import RankZeroParts, Steps, TrainerParts
from gymtrain_trainer.monitoring.evaluation_scores import ALL, EVALUATIONS_FILE, EvaluationsFile
from gymtrain_trainer.trl.whole_weights import read_weights, whole_weights
from gymtrain_trainer.weights import model_logprobs

log = logging.getLogger(__name__)


class Evaluator:
    """See `framework.Trainer`. One process."""

    def __init__(self, parts: TrainerParts) -> None:
        """
        Raises:
            ResumeError: the checkpoints that are to be evaluated aren't there.
        """
        assert parts.rank_zero is not None, "it is one process"
        context = parts.context
        self.step = 0
        self._zero: RankZeroParts = parts.rank_zero
        self._stop = parts.stop
        self._model = context.paths.model
        self._scratch = context.paths.scratch
        self._weights = self._model  # the folder that vLLM's come from
        self._models = evaluated_models(context)
        rows = EvaluationsFile(context.run_folder / EVALUATIONS_FILE).rows()
        self._known = {row.step for row in rows if row.environment == ALL}  # of an attempt before

    @property
    def tokenizer(self) -> Any:
        """transformers' tokenizer."""
        return AutoTokenizer.from_pretrained(self._model)

    @property
    def model_config(self) -> Any:
        """transformers' configuration."""
        return AutoConfig.from_pretrained(self._model)

    def run(self, checkpoint: Path | None) -> None:
        """Evaluates all models that have no row yet."""
        left = [one for one in self._models if one.step not in self._known]
        total = self._models[-1].step
        self._zero.callbacks.on_begin(Steps(max(self._known, default=0), total))
        self._zero.transfer.init_weight_transfer()
        try:
            for number, one in enumerate(left, start=1):
                if self._stop.requested:
                    return
                self._evaluate(one, number, Steps(one.step, total))
        finally:
            self._zero.rollouts.stop()
            self._zero.transfer.destroy()

    def _evaluate(self, model: EvaluatedModel, version: int, steps: Steps) -> None:
        self._zero.callbacks.on_step_end(steps)  # waits for the evaluation before, which needs the weights before
        self._weights = whole_weights(model.folder, self._model, self._scratch)
        log.info("weights of %s", model.folder)
        self._zero.transfer.pause()
        self._zero.transfer.send_weights(self.parameters())
        self._zero.transfer.resume()
        if asked := self._zero.transfer.to_compare():
            # As vLLM computes: where it holds float32 of a model in half precision, the model's own rounding would be
            # taken for weights that are missing.
            dtype = self._zero.transfer.sent_dtype or "auto"
            compared = AutoModelForCausalLM.from_pretrained(self._weights, dtype=dtype)
            self._zero.transfer.compare(model_logprobs(compared)(asked))
            del compared
        self.step = model.step
        self._zero.rollouts.update_model_version(version)
        if version == 1:
            self._zero.rollouts.start()
        self._zero.callbacks.on_synced(steps)

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What a weight sync sends: all tensors of the files."""
        return read_weights(self._weights)

    def save_checkpoint(self) -> None:
        """There is nothing to save."""

    def save_model(self, folder: Path) -> None:
        """There is nothing to save."""
        raise NotImplementedError

    def agree(self, flag: bool) -> bool:
        """It is one process."""
        return flag

    def wait_for_everyone(self) -> None:
        """It is one process."""
