"""Checks whether the model folder is complete enough to load, without torch, so that preflight stays fast."""

import json
import os
from pathlib import Path
from typing import Any

from gymtrain_api.wiring import Finding
from gymtrain_trainer.fetch import lacks_weights

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
# Parts of config.json of models that take images, video or sound, in transformers 5.19.
_SENSES = ("vision_config", "vision_tower_config", "vit_config", "image_token_id", "audio_config", "speech_config")
_HEADER_LIMIT = 200_000_000  # bytes; safetensors' own limit of the header is 100 MB


def check_model_folder(folder: Path, source: str, *, trained_here: bool = True) -> list[Finding]:
    """What keeps the model in `folder`, which came from `source`, from being served, and from being trained where this
    trainer does that (`trained_here`)."""
    where = "spec.model.source"
    try:
        present = set(os.listdir(folder))
    except OSError as error:
        return [Finding(where=where, message=f"{source}: cannot read {folder}: {error.strerror}")]
    if not present - {"lost+found"}:
        return [Finding(where=where, message=f"{source}: the folder is empty; is the path right?")]
    listing = ", ".join(sorted(present)[:12]) + (", ..." if len(present) > 12 else "")
    findings = []

    def add(message: str) -> None:
        findings.append(Finding(where=where, message=f"{source}: {message}"))

    config = _json(folder / "config.json", add, f"there is no config.json (found: {listing})")
    if config is not None and not config.get("architectures"):
        add("config.json names no architectures, so neither vLLM nor transformers knows the model's class")
    if trained_here and config is not None and (problem := _kind_problem(config)):
        add(problem)
    if not present & set(_WEIGHTS) and not lacks_weights(folder):
        gguf = sorted(name for name in present if name.endswith(".gguf"))
        found = f"found: {listing}"
        if gguf:
            found = f"{gguf[0]} must be converted first, with AutoModelForCausalLM.from_pretrained(gguf_file=...)"
        add(f"no weights: expected model.safetensors, alone or with an index; {found}")
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if name in present and (index := _json(folder / name, add, "")) is not None:
            missing = sorted(set(index.get("weight_map", {}).values()) - present)
            if missing:
                add(f"{name} names {len(missing)} weight files that are missing, the first: {missing[0]}")
    for name in sorted(name for name in present if name.endswith(".safetensors")):
        if problem := _safetensors_problem(folder / name):
            add(f"{name} {problem}")
    if not present & set(_TOKENIZERS):
        add(f"there is no tokenizer (found: {listing})")
    elif "chat_template.jinja" not in present:
        tokenizer = _json(folder / "tokenizer_config.json", add, "there is no tokenizer_config.json")
        if tokenizer is not None and not tokenizer.get("chat_template"):
            add(
                "the tokenizer has no chat template, which agents need: add chat_template.jinja; base models bring none"
            )
    return findings


def _kind_problem(config: dict[str, Any]) -> str | None:
    """What in the model's kind keeps it from being trained: samples are token ids, from first to last."""
    name = next(iter(config.get("architectures") or []), "the model")
    senses = sorted(key for key in _SENSES if config.get(key))
    if senses:
        return (
            f"{name} takes more than text ({', '.join(senses)} in config.json). Samples carry no images and no sound, "
            "and none of the weights that see or hear go to vLLM: use a text-only model, such as one whose "
            "architecture ends in ForCausalLM"
        )
    if config.get("is_encoder_decoder"):
        return (
            f"{name} is an encoder with a decoder (is_encoder_decoder in config.json); only causal models are trained"
        )
    return None


def _json(path: Path, add: Any, missing: str) -> dict[str, Any] | None:
    """The object in a file; None with a finding where there is none."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        add(missing)
        return None
    except (OSError, ValueError) as error:
        add(f"{path.name} is unreadable: {error}")
        return None
    return value if isinstance(value, dict) else {}


def _safetensors_problem(path: Path) -> str | None:
    """What is wrong with the file's frame: an interrupted copy is the usual case, a Git LFS pointer the other."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if start.startswith(b"version "):
                return "is a Git LFS pointer, not the file itself: fetch it with git lfs pull"
            if len(start) < 8 or length > min(size - 8, _HEADER_LIMIT):
                return f"isn't a safetensors file, or is cut off ({size} bytes)"
            header = json.loads(file.read(length))
    except OSError as error:
        return f"is unreadable: {error.strerror}"
    except ValueError:
        return "isn't a safetensors file: its header is broken"
    tensors = (entry for name, entry in header.items() if name != "__metadata__")
    needed = max((entry["data_offsets"][1] for entry in tensors), default=0) + 8 + length
    return f"is cut off: {size} of {needed} bytes" if size < needed else None
