"""A model with random weights, and an adapter for it: the cost of a sync needs no skill."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.shapes import LLAMA_06B, QWEN3_4B, QWEN3_14B, QWEN3_30B_A3B, SMOLLM2_135M

SHAPES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "0.1": ("llama", SMOLLM2_135M),
    "0.6": ("llama", LLAMA_06B),
    "4": ("qwen3", QWEN3_4B),
    "14": ("qwen3", QWEN3_14B),
    "30": ("qwen3_moe", QWEN3_30B_A3B),
}
"""Kind and configuration by billions of parameters."""
ATTENTION = ("q_proj", "v_proj")
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

_RANK, _ALPHA = 16, 32


def make_model(
    folder: Path, shape: Mapping[str, Any] = SMOLLM2_135M, kind: str = "llama", *, weights: bool = True
) -> Any:
    """The model on the current GPU in bfloat16, made there; its folder is what vLLM starts from.

    Args:
        folder: gets the configuration and a tokenizer.
        shape: arguments of the configuration's class.
        kind: of the configuration, such as "qwen3".
        weights: whether the folder gets them too.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind,
        **shape,
        max_position_embeddings=32768,
        initializer_range=0.06,  # far from uniform, so that other weights give other log-probabilities
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.tie_weights()
    model.config.architectures = [type(model).__name__]
    if weights:
        model.save_pretrained(folder)
    else:
        model.config.save_pretrained(folder)
    words, first = {f"w{number}": number for number in range(config.vocab_size)}, ("w0", "w1", "w2")
    tokenizer = Tokenizer(WordLevel(words, unk_token=first[0]))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=first[1], eos_token=first[2]).save_pretrained(folder)
    return model.eval()


def change(model: Any) -> None:
    """Other weights, as a few large optimizer steps would make them."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # of the same spread as before: 0.95² + 0.31² is 1
                parameter.mul_(0.95).add_(torch.randn_like(parameter), alpha=0.31 * float(parameter.std()))


def adapter_config(model_folder: Path, targets: Sequence[str] = ATTENTION) -> dict[str, Any]:
    """Content of adapter_config.json."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model_folder),
        "r": _RANK,
        "lora_alpha": _ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(targets),
    }


def make_adapter(model: Any, targets: Sequence[str] = ATTENTION) -> dict[str, Any]:
    """Random tensors under peft's names."""
    found = {}
    for name, weight in _adapted(model, targets):
        rows, columns = weight.shape
        found[f"{name}.lora_A.weight"] = torch.randn(_RANK, columns, device=weight.device).to(weight.dtype) * 0.05
        found[f"{name}.lora_B.weight"] = torch.randn(rows, _RANK, device=weight.device).to(weight.dtype) * 0.05
    return found


@contextmanager
def merged(model: Any, adapter: dict[str, Any], targets: Sequence[str] = ATTENTION) -> Iterator[None]:
    """The model computes with the adapter meanwhile."""
    before = []
    with torch.no_grad():
        for name, weight in _adapted(model, targets):
            before.append((weight, weight.detach().clone()))
            down, up = adapter[f"{name}.lora_A.weight"], adapter[f"{name}.lora_B.weight"]
            weight.add_((up.float() @ down.float() * (_ALPHA / _RANK)).to(weight.dtype))
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, kept in before:
                weight.copy_(kept)


def _adapted(model: Any, targets: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Name in peft's files, and weight, of each layer that has an adapter."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in targets:
            yield f"base_model.model.{name}", module.weight
