"""The weight-transfer engine `gymtrain_pull`.

vLLM's own engines begin to reload when an update starts, so a transfer that fails leaves the model without weights,
and the next request kills the server. Here start is a no-op and nothing is touched until every file is fetched
and verified: a failed fetch keeps the server serving what it has. The fetch may begin long before the load, in threads
of its own: the server keeps generating, and is paused for the load alone.
"""

import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from gymtrain_api.manifest import PullUpdate
from gymtrain_vllm import ready
from gymtrain_vllm.errors import FetchError, LoadError
from gymtrain_vllm.fetch import BackgroundFetch, discard
from gymtrain_vllm.pinned_files import PinnedFiles, registration
from gymtrain_vllm.server_exit import ExitCode, exit_soon
from gymtrain_vllm.tensors import read_tensors
from gymtrain_vllm.vllm_internals import layerwise_reload, pack_for_cpu

logger = logging.getLogger("vllm.gymtrain")  # below vLLM's own logger, so that its handlers print it

_LAST_WORDS_SECONDS = 2.0  # in which the error is reported


@dataclass
class PullInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vllm is not installed where types are checked
    """Nothing to agree on: there is no group and no connection to keep."""


@dataclass
class PullUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """`PullUpdate` in the shape that vLLM wants."""

    manifest_url: str
    version: str
    timeout_seconds: float = 600.0
    step: str = "load"
    fetch_id: str = ""


class PullEngine(WeightTransferEngine[PullInitInfo, PullUpdateInfo]):  # type: ignore[misc]
    """Fetches a whole checkpoint over HTTP, then reloads the model layer by layer."""

    init_info_cls = PullInitInfo
    update_info_cls = PullUpdateInfo
    supports_draft_weight_update = False

    _received: str | None = None
    _files: tuple[Path, ...] = ()  # that were loaded and not freed yet

    def __init__(self, *arguments: Any, **more: Any) -> None:
        """vLLM makes one in each worker process."""
        super().__init__(*arguments, **more)
        self._pinned = PinnedFiles(registration(self.device))
        self._background_fetch = BackgroundFetch(held=self._pinned)
        # On a CPU tensors are views of the files, and what vLLM keeps of them must not change.
        self._background_fetch.reuses = self.device.type != "cpu"

    def init_transfer_engine(self, init_info: PullInitInfo) -> None:
        """Nothing to set up."""

    def start_weight_update(self, *_: Any, **__: Any) -> None:
        """Nothing yet: see the module's text. (0.25 passes is_checkpoint_format.)"""

    def receive_weights(self, update_info: PullUpdateInfo, *_: Any, **__: Any) -> None:
        """Begins to fetch one version, or loads it once it is fetched and verified.

        Raises:
            FetchError: the model was not touched.
            LoadError: the model can't be used any more; the process ends shortly after, so that the pod restarts.
        """
        started = time.monotonic()
        try:
            update = PullUpdate.model_validate(asdict(update_info))
        except ValidationError as error:
            raise FetchError(f"bad update_info: {error}") from error
        self._free()
        if update.step == "fetch":
            self._background_fetch.begin(update)
            return
        files = self._background_fetch.files(update)
        fetched = time.monotonic()
        self._files = tuple(files)
        try:
            self._load(files)
        except Exception as error:
            ready.remove_note()
            discard(list(self._files))
            exit_soon(ExitCode.HALF_LOADED, _LAST_WORDS_SECONDS)  # a model of mixed weights must not answer anything
            what = str(error) or type(error).__name__
            raise LoadError(f"version {update.version} doesn't fit the model: {what}") from error
        self._received = update.version
        logger.info(
            "weights %s: waited %.3f s for the last files, loaded in %.3f s",
            update.version,
            fetched - started,
            time.monotonic() - fetched,
        )

    def finish_weight_update(self) -> None:
        """Notes the version for the readiness probe; vLLM sets its own label after this.

        All workers have loaded now: earlier, the files might go away under one that still reads them.
        """
        self._free()
        if self._received is not None:
            ready.write_note(self._received)

    def shutdown(self) -> None:
        """Ends a fetch that is under way."""
        discard(list(self._files))
        self._background_fetch.close()

    @staticmethod
    def trainer_send_weights(*_: Any, **__: Any) -> None:
        """Abstract in vLLM 0.25 only; our trainer doesn't use vLLM's classes."""
        raise NotImplementedError("gymtrain's trainer offers its weights over HTTP")

    def _free(self) -> None:
        files, self._files = self._files, ()
        if files:
            self._background_fetch.done_with(list(files))

    def _load(self, files: list[Path]) -> None:
        expected = {name for name, _ in self.model.named_parameters()}
        with torch.no_grad():
            with layerwise_reload(self.model, self.model_config):
                loaded = self.model.load_weights(read_tensors(files, self.device, self._pinned))
            if self.device.type == "cpu":
                pack_for_cpu(self.model)
        # The same test that vLLM makes after its own loading, with the same exception for quantized models.
        if loaded is not None and self.model_config.quantization is None and (missing := expected - set(loaded)):
            raise LoadError(f"no weights arrived for {', '.join(sorted(missing)[:5])} ({len(missing)} parameters)")
