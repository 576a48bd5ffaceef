"""TRL as a training framework: what framework.py asks of one. Imports TRL, which takes 15 s and more, when it must."""

import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import Finding
from gymtrain_trainer.context import Context
from gymtrain_trainer.framework import ContextLength, Framework, Launch, Trainer, TrainerParts, TrainingSettings
from gymtrain_trainer.launch import torchrun_arguments
from gymtrain_trainer.trl.reporter_settings import check_reporters, environment, reporters_of
from gymtrain_trainer.trl.settings import training_settings, with_an_end

_UNREPORTED = "evaluation.withoutTraining reports to no tracker: its results are in evaluations.csv and the log"


def make_framework() -> Framework:
    """See `framework.load_framework`."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    for noisy in ("trl", "accelerate"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    leave_out_vllm()
    return TRL()


def leave_out_vllm() -> None:
    """Makes vLLM look absent in this process, by the way that importlib documents for it: None in sys.modules.

    `trl.experimental.async_grpo` imports vLLM where it is installed, as in the trainer's image: 5 s of 30 s (CPU time,
    TRL 1.16 and vLLM 0.32), for its own weight transfer and rollout worker, which a run never uses. Without effect once
    TRL is imported.
    """
    sys.modules.setdefault("vllm", cast(ModuleType, None))


class TRL:
    """TRL's AsyncGRPOTrainer: see `framework.Framework`."""

    def settings(self, spec: GymTrainingRunSpec, rows: int | None) -> TrainingSettings:
        """What `spec.trainer.config` means."""
        return training_settings(spec, rows)

    def check_settings(self, spec: GymTrainingRunSpec, context: ContextLength | None) -> list[Finding]:
        """All checks of `spec.trainer.config` and `spec.model.lora`, the last of each by the libraries' own classes."""
        from gymtrain_trainer.trl.config_checks import check_config, check_lengths
        from gymtrain_trainer.trl.lora_checks import check_lora

        if spec.evaluates_only:
            return [*check_lengths(spec, context), *check_config(with_an_end(spec))]
        reporters = check_reporters(spec, os.environ, Path.home())
        return [*check_lengths(spec, context), *check_config(spec), *reporters, *check_lora(spec)]

    def rehearse(self, spec: GymTrainingRunSpec, model: Path) -> tuple[list[Finding], list[Finding]]:
        """Makes the trainer on torch's meta device."""
        if spec.evaluates_only:
            told = set(reporters_of(spec)) - {"none", "tensorboard"}
            return [], [Finding(where="spec.trainer.config.report_to", message=_UNREPORTED)] if told else []
        from gymtrain_trainer.trl.rehearsal import rehearse

        return rehearse(spec, model)

    def launch(self, context: Context) -> Launch:
        """By torchrun."""
        on_cpu = context.run.spec.trainer.gpus == 0
        return Launch(torchrun_arguments(context), {"ACCELERATE_USE_CPU": "true"} if on_cpu else {})

    def make_trainer(self, parts: TrainerParts) -> Trainer:
        """Loads the model and makes TRL's trainer."""
        if parts.context.run.spec.evaluates_only:
            from gymtrain_trainer.trl.evaluator import Evaluator

            return Evaluator(parts)
        # Before TRL is imported: it imports trackers that are installed, and some read their variables then.
        os.environ |= environment(parts.context, os.environ)
        from gymtrain_trainer.trl.trainer import make_trainer

        return make_trainer(parts)
