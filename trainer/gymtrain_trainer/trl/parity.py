"""The parity check in TRL's trainer: what its ranks do together once a sync is over.

    rank 0                                                    the others
    TRL's sync; meanwhile the pods sample                     TRL's sync, and then wait here
    to_compare ────────── what they sampled ───────────────►
    one forward pass ◄─── layers of a sharded model ───────►  the same forward pass
    compare ───────────── the error, where there is one ───►  raise it too

TRL has rank 0 alone call a weight transfer, in the middle of a sync, where the others wait in collectives of TRL's own.
TRL's callbacks run on all ranks, and those that were added after its own ones run when its sync is over.
"""

from collections.abc import Sequence
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gymtrain_trainer.framework import WeightTransfer
from gymtrain_trainer.trl import internals
from gymtrain_trainer.trl.steps import agree_among_ranks
from gymtrain_trainer.weights import Completion, WeightParityError, model_logprobs


class ParityCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not installed where types are checked
    """All ranks: checks parity after those syncs that rank 0 has something to compare of. To be added after TRL's."""

    def __init__(self, trainer: Any, transfer: WeightTransfer | None) -> None:
        """`transfer`: on rank 0 only."""
        self._trainer = trainer
        self._transfer = transfer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After TRL's first weight sync."""
        self._check()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After the weight sync of this step, where it has one."""
        self._check()

    def _check(self) -> None:
        asked = self._transfer.to_compare() if self._transfer is not None else []
        if not agree_among_ranks(bool(asked)):
            return
        asked = broadcast_object_list([asked], from_process=0)[0]
        computed = trained_log_probs(self._trainer, asked)
        error: WeightParityError | None = None
        if self._transfer is not None:
            try:
                self._transfer.compare(computed)
            except WeightParityError as found:
                error = found
        error = broadcast_object_list([error], from_process=0)[0]  # else the others would wait for the next batch
        if error is not None:
            raise error


def trained_log_probs(trainer: Any, completions: Sequence[Completion]) -> list[list[float]]:
    """Log-probability of each token of each completion at temperature 1, as the model is now. A collective.

    Computed with plain attention: TRL's is for packed rows.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    with internals.plain_attention(model):
        return model_logprobs(model, trainer.accelerator.device)(completions)
