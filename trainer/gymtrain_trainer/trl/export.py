"""The final model, in files that vLLM and others load.

| of | weights | everything else |
|---|---|---|
| all weights | safetensors, named and arranged as in the model that training began with | that model's own files |
| an adapter | as peft writes it | as peft writes it, and the tokenizer |

Training keeps float32 weights. They are exported in the type that `spec.model.dtype` names: vLLM had them in that type
when it sampled the rollouts. With `auto`, which is the default, it is the type that the model came in, as its
config.json says; float32 where that says nothing. So the final model is as large as the first one. What can't be told
from weights of the exported type, such as how to go on training, is in the checkpoints, which stay float32.

Config, generation config, tokenizer, chat template and processors don't change in training, so they are copied: written
anew by this release of transformers, an older one could misread them. Only the type is set in the config.
"""

import json
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from gymtrain_trainer.trl.gathering import gathered

_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TYPE_KEYS = ("dtype", "torch_dtype")  # in config.json; the second one of releases before transformers 5
_CONFIG = "config.json"
_COPIED = {".json", ".jinja", ".txt", ".model", ".tiktoken", ".py"}  # whatever holds no weights, and no text for people
_TEMPLATES = "additional_chat_templates"
_SHARD_SIZE = "5GB"  # at most, of one file


def export_type(stated: str, source: Path) -> torch.dtype:
    """The type of the exported weights: see the module.

    Args:
        stated: `spec.model.dtype`.
        source: the folder of the model that training began with.
    """
    if stated == "auto":
        config = json.loads((source / _CONFIG).read_text())
        parts = (config, config.get("text_config") or {})
        named = (str(part[key]) for part in parts for key in _TYPE_KEYS if part.get(key))
        stated = next(named, "float32").removeprefix("torch.")
    return _TYPES.get(stated, torch.float32)


def export_model(trainer: Any, folder: Path, source: Path, dtype: torch.dtype) -> None:
    """Writes all weights as `dtype`, with the files that were beside them in `source`. A collective; rank 0 writes."""
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    weights = _gathered(model, trainer.accelerator, dtype=dtype)
    if not trainer.accelerator.is_main_process:
        return
    model.save_pretrained(folder, state_dict=weights, max_shard_size=_SHARD_SIZE)
    for file in source.iterdir():
        if file.suffix in _COPIED and not file.name.startswith(".") and not file.name.endswith(".index.json"):
            shutil.copyfile(file, folder / file.name)
    if (source / _TEMPLATES).is_dir():
        shutil.copytree(source / _TEMPLATES, folder / _TEMPLATES, dirs_exist_ok=True)
    config = json.loads((source / _CONFIG).read_text())
    (folder / _CONFIG).write_text(json.dumps(_typed(config, str(dtype).removeprefix("torch.")), indent=2) + "\n")


def export_adapter(trainer: Any, folder: Path) -> None:
    """Writes the adapter as it was trained, with the tokenizer. A collective; rank 0 writes."""
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # peft writes embeddings that an adapter is for, too.
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    wanted += [layer.base_layer.weight for layer in layers if hasattr(layer, "base_layer")]
    weights = _gathered(model, trainer.accelerator, only={id(parameter) for parameter in wanted})
    if trainer.accelerator.is_main_process:
        model.save_pretrained(folder, state_dict=weights)
        trainer.processing_class.save_pretrained(folder)


def _gathered(
    model: torch.nn.Module, accelerator: Any, *, dtype: torch.dtype | None = None, only: Collection[int] | None = None
) -> dict[str, torch.Tensor]:
    """The state dict in host memory, on rank 0; empty on the others. A collective where the model is sharded.

    Cast first, then gathered: of what a rank has of a tensor, to what rank 0 keeps.

    Args:
        dtype: of the parameters; None leaves them. Buffers are left, as loaders keep what a model has in float32.
        only: by id(), the tensors that are wanted; None wants all.
    """
    buffers = {id(buffer) for buffer in model.buffers()}
    first: dict[int, str] = {}  # name by id(): tied ones stay tied
    names: dict[str, str] = {}  # of the first of those that are tied

    def parts() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in model.state_dict(keep_vars=True).items():
            if only is not None and id(tensor) not in only:
                continue
            names[name] = first.setdefault(id(tensor), name)
            if names[name] == name:
                part = tensor.detach()
                cast = dtype is not None and part.is_floating_point() and id(tensor) not in buffers
                yield name, part.to(dtype) if cast else part

    whole: dict[str, torch.Tensor] = {}
    for name, tensor in gathered(parts(), accelerator.device):
        if accelerator.is_main_process:
            whole[name] = tensor.cpu()
    return {name: whole[kept] for name, kept in names.items()} if accelerator.is_main_process else {}


def _typed(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """A config.json that says `dtype`, also of its parts."""
    said = _with_types(config, dtype)
    return said if any(key in said for key in _TYPE_KEYS) else {**said, _TYPE_KEYS[1]: dtype}  # all releases read it


def _with_types(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    def replaced(key: str, value: Any) -> Any:
        if key in _TYPE_KEYS:
            return dtype
        return _with_types(value, dtype) if isinstance(value, dict) and key.endswith("_config") else value

    return {key: replaced(key, value) for key, value in config.items()}
