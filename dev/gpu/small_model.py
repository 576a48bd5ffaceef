"""A model with random weights, and an adapter for it: the cost of a sync needs no skill."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.shapes import SMOLLM2_135M

_RANK, _ALPHA = 16, 32
_TARGETS = ("q_proj", "v_proj")


def make_model(folder: Path, shape: Mapping[str, Any] = SMOLLM2_135M) -> Any:
    """The model on the current GPU in bfloat16, also saved to `folder` with a tokenizer.

    `shape`: arguments of LlamaConfig.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        **shape,
        max_position_embeddings=2048,
        initializer_range=0.06,  # far from uniform, so that other weights give other log-probabilities
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.tie_weights()
    model.save_pretrained(folder)
    words, first = {f"w{number}": number for number in range(config.vocab_size)}, ("w0", "w1", "w2")
    tokenizer = Tokenizer(WordLevel(words, unk_token=first[0]))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=first[1], eos_token=first[2]).save_pretrained(folder)
    return model.cuda().eval()


def change(model: Any) -> None:
    """Other weights, as a few large optimizer steps would make them."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # of the same spread as before: 0.95² + 0.31² is 1
                parameter.mul_(0.95).add_(torch.randn_like(parameter), alpha=0.31 * float(parameter.std()))


def adapter_config(model_folder: Path) -> dict[str, Any]:
    """Content of adapter_config.json."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model_folder),
        "r": _RANK,
        "lora_alpha": _ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(_TARGETS),
    }


def make_adapter(model: Any) -> dict[str, Any]:
    """Random tensors under peft's names."""
    found = {}
    for number, layer in enumerate(model.model.layers):
        for target in _TARGETS:
            weight = getattr(layer.self_attn, target).weight
            name = f"base_model.model.model.layers.{number}.self_attn.{target}"
            rows, columns = weight.shape
            found[f"{name}.lora_A.weight"] = torch.randn(_RANK, columns, device=weight.device).to(weight.dtype) * 0.05
            found[f"{name}.lora_B.weight"] = torch.randn(rows, _RANK, device=weight.device).to(weight.dtype) * 0.05
    return found


@contextmanager
def merged(model: Any, adapter: dict[str, Any]) -> Iterator[None]:
    """The model computes with the adapter meanwhile."""
    pairs = list(_pairs(model, adapter))
    before = [weight.detach().clone() for weight, _, _ in pairs]
    with torch.no_grad():
        for weight, down, up in pairs:
            weight.add_((up.float() @ down.float() * (_ALPHA / _RANK)).to(weight.dtype))
    try:
        yield
    finally:
        with torch.no_grad():
            for (weight, _, _), kept in zip(pairs, before, strict=True):
                weight.copy_(kept)


def _pairs(model: Any, adapter: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    for number, layer in enumerate(model.model.layers):
        for target in _TARGETS:
            name = f"base_model.model.model.layers.{number}.self_attn.{target}"
            weight = getattr(layer.self_attn, target).weight
            yield weight, adapter[f"{name}.lora_A.weight"], adapter[f"{name}.lora_B.weight"]
