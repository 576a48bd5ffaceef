"""The transport `LoRAFilesystem`: adapters on a volume that trainer and vLLM pods mount at the same path.

    send: FOLDER/<label>/{adapter_config.json, adapter_model.safetensors}
          ──► each pod, all at once: POST /v1/load_lora_adapter {lora_name: <label>, lora_path: FOLDER/<label>}

The adapter's name is the version label, so that a request names the weights it wants, and nothing is paused. A new
version is a new name, never an adapter loaded in place: vLLM keys its prefix cache by the name.

TRL saves the adapter itself, because that is a collective of all processes where the model is sharded: after
`use_saved` the next `send` publishes its folder.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymtrain_api.transports import TransportName
from gymtrain_api.weight_version import WeightVersion
from gymtrain_trainer.weights.errors import PodRefusedError, StagingError
from gymtrain_trainer.weights.pods.client import UNSYNCED, PodClient, PublishedVersion
from gymtrain_trainer.weights.store.safetensors_files import write_file
from gymtrain_trainer.weights.store.staging import on_host
from gymtrain_trainer.weights.transports.transport import Delivered, Transport

if TYPE_CHECKING:
    import torch

    from gymtrain_trainer.weights.transports.transport import NamedTensors

CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"  # peft's names
_BAD_REQUEST = 400
_LOADED = "already been loaded"  # of vLLM's answer


class LoRAFilesystem(Transport):
    """Pods load adapters from the volume."""

    name: TransportName = "LoRAFilesystem"

    def __init__(self, folder: Path, *, max_staleness: int, adapter_config: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            folder: for the adapters, at the same path in the vLLM pods.
            max_staleness: versions behind the newest that requests may still name.
            adapter_config: content of adapter_config.json, for tensors that TRL did not save.
        """
        self.folder = folder
        self._max_staleness = max_staleness
        self._config = adapter_config
        self._saved: Path | None = None
        self._sources: dict[int, Path] = {}  # by number of the version

    def prepare(self) -> None:
        """Clears adapters that an earlier attempt left."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def use_saved(self, folder: Path) -> None:
        """The next `send` publishes this folder, which is this object's from now on."""
        self._saved = folder

    def send(self, number: int, tensors: NamedTensors, delivered: Callable[[Delivered], None]) -> None:
        """Saves the adapter's tensors, under peft's names, and loads them into every pod.

        Raises:
            StagingError: the volume is full.
            NoServersError: no pod answered before the deadline.
            WeightSyncError: a pod refused.
        """
        started = time.monotonic()
        given = [(name, tensor.detach()) for name, tensor in tensors]
        found = on_host(given) if given else []
        folder = self._saved or self._save(self.folder / self.fleet.settings.version(number), found)
        self._saved = None
        size = sum(path.stat().st_size for path in folder.iterdir())
        self._sources[number] = folder
        self.thread.run(self._bring(number, size, started, delivered))
        self._forget(number)

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

    def _forget(self, newest: int) -> None:
        """Deletes folders one version after the pods forgot them: vLLM may read an adapter's folder late."""
        for number in [number for number in self._sources if number < newest - self._max_staleness - 1]:
            shutil.rmtree(self._sources.pop(number), ignore_errors=True)

    def asked_as(self, number: int) -> str:
        """The adapter's own name."""
        return self.fleet.settings.version(number)

    # In the thread of the pods.

    def published(self, number: int) -> PublishedVersion:
        """By its folder."""
        return PublishedVersion(self.fleet.settings.version(number), str(self._sources[number]))

    async def label(self, client: PodClient) -> str:
        """The newest adapter of this attempt; else one that some other attempt or run left."""
        names = await client.models()
        numbers = [number for name in names if (number := self._number(name)) is not None]
        if numbers:
            return self.fleet.settings.version(max(numbers))
        return next((name for name in names if name.count(":") == 2), UNSYNCED)

    async def push(self, client: PodClient, version: PublishedVersion, seconds: float) -> float:
        """Loads the adapter beside the older ones, then forgets those that no request names any more."""
        try:
            await client.load_adapter(version.label, version.source, seconds)
        except PodRefusedError as error:
            if error.status != _BAD_REQUEST or _LOADED not in error.text:
                raise
        newest = self._number(version.label) or 0
        for name in await client.models():
            number = self._number(name)
            of_this_run = name.startswith(f"{self.fleet.settings.run}:")
            stale = number < newest - self._max_staleness if number is not None else of_this_run
            if stale:
                await client.unload_adapter(name)
        return 0.0  # generation goes on all the time

    async def _bring(self, number: int, size: int, started: float, delivered: Callable[[Delivered], None]) -> None:
        staged = time.monotonic()
        async with self.fleet.lock:
            outcome = await self.fleet.bring(self.published(number), self.fleet.settings.timeout_seconds)
            delivered(Delivered.by(outcome, size, started, staged))

    def _number(self, name: str) -> int | None:
        """Of a version of this attempt; None for any other name."""
        return WeightVersion.number_in(name, self.fleet.settings.run, self.fleet.settings.attempt)
