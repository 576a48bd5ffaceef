"""The transport `LoRAFilesystem`: adapters on a volume that trainer and vLLM pods mount at the same path.

    send_weights: FOLDER/<label>/{adapter_config.json, adapter_model.safetensors}
                  ──► each pod, all at once: POST /v1/load_lora_adapter {lora_name: <label>, lora_path: FOLDER/<label>}

Nothing is paused. TRL saves the adapter itself, because that is a collective of all processes where the model is
sharded: after `use_saved` the next `send_weights` publishes its folder.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymtrain_api.transports import TransportName
from gymtrain_trainer.weights.errors import StagingError
from gymtrain_trainer.weights.parity.watch import ParityWatch
from gymtrain_trainer.weights.pods.adapters import AdapterCarrier
from gymtrain_trainer.weights.pods.client import PublishedVersion
from gymtrain_trainer.weights.pods.fleet import Outcome
from gymtrain_trainer.weights.settings import SyncSettings
from gymtrain_trainer.weights.stats import SyncEvent
from gymtrain_trainer.weights.store.safetensors_files import write_file
from gymtrain_trainer.weights.transports.pushing import PushTransport

if TYPE_CHECKING:
    import torch

    from gymtrain_trainer.weights.transports.protocol import NamedTensors

CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"  # peft's names


class LoRAFilesystem(PushTransport):
    """TRL's WeightTransferProtocol, for the tensors of an adapter."""

    name: TransportName = "LoRAFilesystem"

    def __init__(
        self,
        settings: SyncSettings,
        folder: Path,
        *,
        max_staleness: int,
        adapter_config: Mapping[str, Any] | None = None,
        reason: str = "",
        parity: ParityWatch | None = None,
        observer: Callable[[SyncEvent], None] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            settings: of the run.
            folder: for the adapters, at the same path in the vLLM pods.
            max_staleness: versions behind the newest that requests may still name.
            adapter_config: content of adapter_config.json, for `send_weights`.
            reason: why this transport.
            parity: check after syncs; None leaves it out.
            observer: called for each event, from any thread.
        """
        carrier = AdapterCarrier(settings.run, settings.attempt, max_staleness)
        super().__init__(settings, carrier, reason=reason, parity=parity, observer=observer)
        self.folder = folder
        self._adapters = carrier
        self._config = adapter_config
        self._saved: Path | None = None
        self._sources: dict[int, Path] = {}  # by number of the version

    def init_weight_transfer(self) -> None:
        """Clears adapters that an earlier attempt left, and starts the watcher."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._start()

    def pause(self) -> None:
        """Nothing: a new adapter stands beside the old ones."""

    def use_saved(self, folder: Path) -> None:
        """The next `send_weights` publishes this folder, which is this object's from now on."""
        self._saved = folder

    def send_weights(self, iterator: NamedTensors) -> None:
        """Saves the adapter's tensors, under peft's names, and loads them into every pod.

        Raises:
            StagingError: the volume is full.
            NoServersError: no pod answered before the deadline.
            WeightSyncError: a pod refused.
            WeightParityError: vLLM computes something else than the trainer.
        """
        started = time.monotonic()
        number = self.numbers.next()
        tensors = [(name, tensor.detach().to("cpu").contiguous()) for name, tensor in iterator]
        folder = self._saved or self._save(self.folder / self.settings.version(number), tensors)
        self._saved = None
        size = sum(path.stat().st_size for path in folder.iterdir())
        self._publish(number, folder, size, started)

    def _save(self, folder: Path, tensors: list[tuple[str, torch.Tensor]]) -> Path:
        partial = folder.with_name(f".{folder.name}")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write_file(partial / TENSORS_FILE, tensors)
            (partial / CONFIG_FILE).write_text(json.dumps(dict(self._config or {})))
            return partial.rename(folder)
        except OSError as error:
            raise StagingError(f"cannot write the adapter to {folder}: {error}") from error

    def resume(self) -> None:
        """Nothing was paused."""

    def _publish(self, number: int, folder: Path, size: int, started: float) -> None:
        staged = time.monotonic()
        self._sources[number] = folder
        outcome = self._start().run(self._sync(number))
        self._account(number, outcome, size, started, staged)
        self._forget(number)
        if self._parity_due():
            self._run_parity(list(outcome.done), self.settings.version(number))

    def _forget(self, newest: int) -> None:
        """Deletes folders one version after the pods forgot them: vLLM may read an adapter's folder late."""
        for number in [number for number in self._sources if number < newest - self._adapters.max_staleness - 1]:
            shutil.rmtree(self._sources.pop(number), ignore_errors=True)

    def _version(self, number: int) -> PublishedVersion:
        return PublishedVersion(self.settings.version(number), str(self._sources[number]))

    async def _sync(self, number: int) -> Outcome:
        async with self._parts()[1]:
            return await self._bring(number)
