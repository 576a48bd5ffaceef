"""What the run's spec says of its weight transport, as the weights package wants it."""

from collections.abc import Callable

from gymtrain_trainer.context import Context
from gymtrain_trainer.framework import NamedTensors
from gymtrain_trainer.weights import ADAPTER_FOLDER, ParityWatch, SyncEvent, TransportNeeds, WeightStore


def transport_needs(
    context: Context,
    store: WeightStore,
    parameters: Callable[[], NamedTensors],
    parity: ParityWatch | None,
    observer: Callable[[SyncEvent], None] | None,
) -> TransportNeeds:
    """`parameters`: of the model that is trained; asked once a transport is chosen."""
    spec = context.run.spec
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
