"""Folders of checkpoints as vLLM could load them: all weights, as safetensors, named as in the model's own files.

| a checkpoint of | becomes |
|---|---|
| all weights, on one process or gathered | itself |
| all weights, in shards of several processes | a copy that is put together |
| an adapter | a copy of the model that it is of, with the adapter merged |
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from gymtrain_trainer.errors import SettingsError

_ADAPTER = "adapter_config.json"
_SHARDS = "pytorch_model_fsdp_0"  # accelerate's folder of a model's shards
_INDEX = "model.safetensors.index.json"
_COPY = "whole"


def whole_weights(checkpoint: Path, model: Path, scratch: Path) -> Path:
    """A folder with all weights of a checkpoint; a copy in `scratch` takes the place of the copy before.

    Args:
        checkpoint: a folder with a model, or a checkpoint that a framework wrote.
        model: the folder of the model that training began with.
        scratch: where copies go.

    Raises:
        SettingsError: there are no weights in it that could be read.
    """
    if (checkpoint / _ADAPTER).exists():
        return _saved(_merged(checkpoint, model), scratch)
    if (checkpoint / _SHARDS).is_dir():
        return _saved(_put_together(checkpoint / _SHARDS, model), scratch)
    if next(checkpoint.glob("*.safetensors"), None) is None:
        raise SettingsError(f"{checkpoint} holds no weights to evaluate: no safetensors, shards or adapter")
    return checkpoint


def read_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a folder with safetensors, one in memory at a time."""
    files = sorted(folder.glob("*.safetensors"))
    if (index := folder / _INDEX).exists():  # other files beside these are no part of the model
        files = sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                yield name, tensors.get_tensor(name)


def _merged(checkpoint: Path, model: Path) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    return PeftModel.from_pretrained(base, checkpoint).merge_and_unload()


def _put_together(shards: Path, model: Path) -> Any:
    from torch.distributed import checkpoint as shares
    from transformers import AutoConfig, AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model), dtype=torch.float32)
    state = {"model": whole.state_dict()}
    shares.load(state, storage_reader=shares.FileSystemReader(shards), no_dist=True)
    whole.load_state_dict(state["model"])
    return whole


def _saved(model: Any, scratch: Path) -> Path:
    folder = scratch / _COPY
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    return folder
