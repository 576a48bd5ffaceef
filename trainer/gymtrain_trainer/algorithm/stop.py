"""SIGTERM at TRL's steps: all ranks end together."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gymtrain_trainer.stopping import StopSignal


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


def agree_among_ranks(flag: bool) -> bool:
    """True on every rank if `flag` is True on one."""
    if not torch.distributed.is_initialized():
        return flag
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    value = torch.tensor(int(flag), device=device)
    torch.distributed.all_reduce(value, op=torch.distributed.ReduceOp.MAX)
    return bool(value.item())
