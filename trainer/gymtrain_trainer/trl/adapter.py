"""Training an adapter: TRL saves and versions it as for its own vLLM client, and our transport brings it to the pods.

TRL's way for a custom transport is to merge the adapter and stream full weights. Its own way for adapters saves
them on all processes together, which a sharded model needs, and moves a hundredth of the bytes; it is chosen by an
attribute of the trainer and speaks to a client object, for which `AdapterClient` stands in.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from gymtrain_trainer.errors import SettingsError, TrainerError
from gymtrain_trainer.trl import internals
from gymtrain_trainer.weights import LoRAFilesystem, Transport


def agree_on_adapter(trainer: Any, settle: Callable[[], Transport] | None) -> None:
    """Lets all processes take the same way. A collective.

    Args:
        trainer: TRL's, with an adapter.
        settle: chooses the transport; on rank 0 only.

    Raises:
        SettingsError: vLLM can't serve this kind of adapter.
        TrainerError: no transport; on every rank.
    """
    transport: Transport | None = None
    error: Exception | None = None
    if settle is not None:
        try:
            transport = settle()
        except TrainerError as refused:
            error = refused
    name = broadcast_object_list([transport.name if transport else None], from_process=0)[0]
    if error is not None:
        raise error
    if name is None:
        raise TrainerError("rank 0 found no weight transport")
    if name == "LoRAFilesystem":
        _use_adapter(trainer, transport)


def _use_adapter(trainer: Any, transport: Transport | None) -> None:
    try:
        internals.check_servable_adapter(trainer.accelerator.unwrap_model(trainer.model))
    except ValueError as error:
        raise SettingsError(
            f"spec.model.lora: {error} Or set spec.weightSync.transport to NCCL or HTTPFull, which send merged weights"
        ) from error
    internals.sync_adapter(trainer)
    if isinstance(transport, LoRAFilesystem):
        saved = transport
        internals.publish_adapter(
            trainer, str(saved.folder), lambda client: AdapterClient(saved, trainer.weight_transfer, client)
        )


class AdapterClient:
    """What TRL asks of its vLLM client while it syncs an adapter."""

    def __init__(self, transport: LoRAFilesystem, transfer: Any, client: Any) -> None:
        """
        Args:
            transport: takes the folders that TRL saves.
            transfer: weight sync, as TRL has it.
            client: TRL's own, foreverything else.
        """
        self._transport = transport
        self._transfer = transfer
        self._client = client

    def pause(self, timeout: float | None = None) -> None:
        """Calls the transport."""
        self._transfer.pause()

    def resume(self, timeout: float | None = None) -> None:
        """Calls the transport."""
        self._transfer.resume()

    def load_lora_adapter(self, lora_name: str, lora_path: str, timeout: float | None = None) -> None:
        """Publishes what TRL saved, under our own label."""
        self._transport.use_saved(Path(lora_path))
        self._transfer.send_weights(iter(()))

    def unload_lora_adapter(self, lora_name: str, timeout: float | None = None) -> None:
        """Does nothing: the transport unloads by its own labels."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)
