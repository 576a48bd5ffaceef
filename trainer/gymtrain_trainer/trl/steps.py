"""SIGTERM at TRL's steps: all ranks end together, at the end of a step."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gymtrain_trainer.errors import InterruptedBySignal
from gymtrain_trainer.stopping import StopSignal


class StopCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not installed where types are checked
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


def end_rollouts_on_signal(trainer: Any) -> None:
    """On rank 0 of several: SIGTERM while rollouts are awaited ends them as if there were no more.

    The other ranks wait for the batch then. Told that there is none, all train what they have, and end together with a
    checkpoint; an error on rank 0 would leave them in that collective.
    """
    make = trainer.get_train_dataloader

    def rollouts() -> Any:
        loader = make()
        batches = loader.dataset
        batches.dataset = UntilSignal(batches.dataset, lambda: trainer.state.global_step)
        return loader

    trainer.get_train_dataloader = rollouts


class UntilSignal(torch.utils.data.IterableDataset[Any]):  # type: ignore[misc]  # torch is not either
    """Rollouts, to the signal once a step was trained: where no batch came yet an end would be another error."""

    def __init__(self, rollouts: Iterable[Any], step: Callable[[], int]) -> None:
        """`step`: steps that are done."""
        self._rollouts = rollouts
        self._step = step

    def __iter__(self) -> Iterator[Any]:
        began_at = self._step()  # only now: a checkpoint is loaded after this was made
        try:
            yield from self._rollouts
        except InterruptedBySignal:
            if self._step() == began_at:
                raise
