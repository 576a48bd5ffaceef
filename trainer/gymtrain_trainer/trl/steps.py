"""TRL's steps: told to the rest of the trainer, and ended by SIGTERM on all ranks together."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_trainer.evaluation.schedule import saves
from gymtrain_trainer.framework import StepCallbacks, StepMeasures, Steps
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.trl.trained import TrainedSamples

# What TRL's log has of a step, by our names
_MEASURES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "kl": "kl",
    "ratio": "ratio",
    "entropy": "entropy",
    "rollout_wait_s": "perf/rollout_wait_s",
    "weight_sync_s": "perf/weight_sync_s",
}


class StepTeller(TrainerCallback):  # type: ignore[misc]  # transformers is not installed where types are checked
    """Rank 0: calls ours where TRL calls its own. To be added before TRL's, which sync the weights at a step's end."""

    def __init__(self, callbacks: StepCallbacks) -> None:
        """`callbacks`: called at each step."""
        self._callbacks = callbacks
        self.trained: TrainedSamples | None = None  # the trainer's, where samples are recorded

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Before TRL's first weight sync."""
        self._callbacks.on_begin(steps_of(state))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The groups of a step are there."""
        self._callbacks.on_step_begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After the optimizer's step, before the weight sync and TRL's own account of the step."""
        self._callbacks.on_step_end(steps_of(state), self.trained.of_step() if self.trained is not None else ())

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """After the weight sync, with TRL's numbers."""
        if logs:
            self._callbacks.on_measures(steps_of(state), measures_of(logs))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """TRL has saved a checkpoint, or tried."""
        self._callbacks.on_save(steps_of(state))


class SyncTeller(TrainerCallback):  # type: ignore[misc]
    """Rank 0: calls ours once the weights are synced. To be added after TRL's callbacks."""

    def __init__(self, callbacks: StepCallbacks) -> None:
        """`callbacks`: called after each step's sync."""
        self._callbacks = callbacks

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After TRL's first weight sync, and the start of its rollout worker."""
        self._callbacks.on_synced(steps_of(state))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After the step's weight sync."""
        self._callbacks.on_synced(steps_of(state))


class EvaluatedSaver(TrainerCallback):  # type: ignore[misc]
    """All ranks: saves a checkpoint of the steps that are evaluated, where the best one is kept."""

    def __init__(self, spec: GymTrainingRunSpec, sync_every: int) -> None:
        """`sync_every`: steps of one weight version."""
        self._spec = spec
        self._sync_every = sync_every

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """TRL saves after it."""
        if saves(self._spec, steps_of(state), self._sync_every):
            control.should_save = True


def steps_of(state: TrainerState) -> Steps:
    """How far training is, by TRL's state."""
    return Steps(state.global_step, state.max_steps)


def measures_of(logs: dict[str, Any]) -> StepMeasures:
    """What of TRL's log is shown; anything that is no number counts as not measured."""
    found = {ours: logs.get(theirs) for ours, theirs in _MEASURES.items()}
    return StepMeasures(**{name: value for name, value in found.items() if isinstance(value, int | float)})


class StopCallback(TrainerCallback):  # type: ignore[misc]
    """All ranks: ends training at a step's end once any of them got SIGTERM, with a checkpoint where those are kept."""

    def __init__(self, stop: StopSignal, save: bool, agree: Callable[[bool], bool]) -> None:
        """`agree`: True on every rank if True on one; a collective."""
        self._stop = stop
        self._save = save
        self._agree = agree

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After the optimizer's step."""
        if self._agree(self._stop.requested):
            self._stop.requested = True
            control.should_training_stop = True
            control.should_save = self._save

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After the last rollouts: there are no more of them once the signal came."""
        if not control.should_training_stop:
            self.on_step_end(args, state, control)


def agree_among_ranks(flag: bool) -> bool:
    """True on every rank if `flag` is True on one."""
    if not torch.distributed.is_initialized():
        return flag
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    value = torch.tensor(int(flag), device=device)
    torch.distributed.all_reduce(value, op=torch.distributed.ReduceOp.MAX)
    return bool(value.item())
