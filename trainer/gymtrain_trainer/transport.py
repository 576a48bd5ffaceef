"""What the run's spec says of its weight transport, as the weights package wants it."""

from collections.abc import Callable
from typing import Any

from gymtrain_trainer.context import Context
from gymtrain_trainer.weights import ADAPTER_FOLDER, ParityWatch, SyncEvent, TransportNeeds, WeightStore


def transport_needs(
    context: Context,
    store: WeightStore,
    trainer: Callable[[], Any],
    parity: ParityWatch | None,
    observer: Callable[[SyncEvent], None] | None,
) -> TransportNeeds:
    """`trainer`: TRL's, once it is made."""
    spec = context.run.spec

    def parameters() -> Any:
        from gymtrain_trainer.trl.trainer import sent_parameters

        return sent_parameters(trainer())

    return TransportNeeds(
        requested=spec.weight_sync.transport,
        store=store,
        adapters=context.run_folder / ADAPTER_FOLDER,
        parameters=parameters,
        lora=spec.model.lora,
        max_staleness=spec.rollout.max_staleness,
        shared_volume=spec.trainer.checkpoint is not None,
        trainer_gpus=spec.trainer.gpus,
        inference_gpus=spec.inference.gpus,
        parity=parity,
        observer=observer,
    )
