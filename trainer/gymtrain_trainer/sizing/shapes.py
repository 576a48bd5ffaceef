"""A model's shape: its parameters, and the bytes that one of its layers keeps of each token.

Only decoders whose layers are known are computed: attention with a gated MLP, or with experts that are gated MLPs. The
bytes of activations are those of transformers' own layers (5.19), tensor by tensor; tests/unit/trainer/
test_trainer_sizing_torch.py compares them with the layers themselves.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gymtrain_trainer.errors import SettingsError
from gymtrain_trainer.weights.transports.nccl.packing import MESSAGE_BYTES

HALF, FULL = 2, 4  # bytes of a number in bf16 or fp16, and in float32

# What distinguishes the layers of the models that are computed, by model_type: norms of queries and keys, and biases
# of queries, keys and values.
_QK_NORM = {"qwen3": True, "qwen3_moe": True, "qwen2": False, "llama": False, "mistral": False}
_QKV_BIAS = {"qwen2"}
_SUFFIX = re.compile(r"-(Base|Instruct-2507|Thinking-2507)$")  # the same shape under more names
_LONG_CONTEXT = 262144  # tokens; of those that end in 2507


@dataclass(frozen=True)
class Bytes:
    """Of one token in one layer, in training.

    Attributes:
        residual: the layer's input, all that gradient checkpointing keeps of it.
        saved: what backward needs, if nothing is computed again.
        forward: the most that forward holds in one layer beside its input.
        backward: the most that backward holds in one layer beside what was saved.
    """

    residual: int
    saved: int
    forward: int
    backward: int


@dataclass(frozen=True)
class ModelShape:
    """A decoder of transformers.

    Attributes:
        inner: width of the MLP, or of one expert.
        context: tokens that prompt and answer may have together.
        tied: one matrix embeds and predicts.
        experts: of each layer; 0 for a dense model.
        experts_per_token: of them that see a token.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    vocabulary: int
    context: int
    tied: bool
    qk_norm: bool = True
    qkv_bias: bool = False
    experts: int = 0
    experts_per_token: int = 0

    @property
    def _queries(self) -> int:
        return self.heads * self.head_width

    @property
    def _keys(self) -> int:
        return self.kv_heads * self.head_width

    def linears(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each linear layer of one layer, by peft's names for target_modules; no experts."""
        hidden, inner = self.hidden, self.inner
        attention = {
            "q_proj": (hidden, self._queries),
            "k_proj": (hidden, self._keys),
            "v_proj": (hidden, self._keys),
            "o_proj": (self._queries, hidden),
        }
        if self.experts:
            return attention
        return attention | {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)}

    def tensors(self) -> Iterator[int]:
        """Numbers in each parameter, in the order in which they are sent to vLLM."""
        yield self.embedding
        for _ in range(self.layers):
            yield from self._layer_tensors()
        yield self.hidden
        if not self.tied:
            yield self.embedding

    def _layer_tensors(self) -> Iterator[int]:
        for name, (inputs, outputs) in self.linears().items():
            yield inputs * outputs
            if self.qkv_bias and name in ("q_proj", "k_proj", "v_proj"):
                yield outputs
            if self.qk_norm and name == "o_proj":
                yield from (self.head_width, self.head_width)
        if self.experts:
            # transformers holds the experts of a layer as two tensors.
            yield self.experts * 2 * self.inner * self.hidden
            yield self.experts * self.inner * self.hidden
            yield self.experts * self.hidden
        yield from (self.hidden, self.hidden)

    @property
    def embedding(self) -> int:
        """Numbers in the matrix that embeds, and in the one that predicts."""
        return self.vocabulary * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Of one layer."""
        return sum(self._layer_tensors())

    @property
    def parameters(self) -> int:
        """Of the model; a matrix that is tied counts once."""
        return sum(self.tensors())

    @property
    def largest_message(self) -> int:
        """Bytes of the largest message of one NCCL sync in half precision, by the rule of `packing.messages`."""
        largest = size = 0
        for numbers in self.tensors():
            size += numbers * HALF
            largest = max(largest, size)
            if size > MESSAGE_BYTES:
                size = 0
        return largest

    def kv_bytes(self, tensor_parallel: int) -> int:
        """Bytes of the key-value cache for each token on one GPU, in half precision."""
        return 2 * self.layers * max(1, math.ceil(self.kv_heads / tensor_parallel)) * self.head_width * HALF

    def activations(self, *, autocast: bool) -> Bytes:
        """Of one token in one layer.

        Args:
            autocast: weights are float32 and computed with in half precision, so norms and the sum along the layers
                are float32; else (FSDP) weights are half precision when they are computed with, and so is that sum.
        """
        hidden, width = self.hidden, FULL if autocast else HALF
        # Of each of the two norms: its input and output of the normalisation in float32 (with autocast the input is
        # the sum along the layers), and what the linear layers after it keep: with autocast each a copy of its own.
        norms = (4 * FULL + 5 * HALF) * hidden if autocast else (2 * FULL + 4 * HALF) * hidden
        # Queries, attention's output; keys and values, gathered along the paths of the packed tree.
        heads = 2 * HALF * self._queries + 2 * HALF * self._keys
        if self.qk_norm:  # its input and normalisation, for queries and keys
            heads += (FULL + HALF) * (self._queries + self._keys)
        inner, rows = self.inner, 0
        if self.experts:  # each token has a row for each of its experts; torch's grouped product isn't cast
            inner, rows = self.experts_per_token * self.inner, self.experts_per_token * hidden
        wide = width if self.experts else HALF
        # The MLP's gate, up, activation and product; an expert's input and output.
        mlp = 4 * wide * inner + 2 * wide * rows
        return Bytes(
            residual=width * hidden,
            saved=norms + heads + mlp,
            forward=mlp + 2 * width * hidden + (5 * HALF * hidden if self.experts else 0),
            backward=(3 if self.experts else 2) * wide * inner + 2 * wide * rows + 3 * HALF * hidden,
        )


def _qwen3(name: str, hidden: int, layers: int, heads: int, inner: int, *, tied: bool = False) -> ModelShape:
    return ModelShape(name, hidden, layers, heads, 8, 128, inner, 151_936, 40_960, tied)


# The published configs (huggingface.co/Qwen/NAME, config.json). They were read from NVIDIA/NeMo at 00558c4,
# nemo/collections/llm/gpt/model/qwen3.py, which has one class for each; transformers' Qwen3Config and Qwen3MoeConfig
# default to 8B's and (but for the layers) 30B-A3B's.
BUILT_IN: Mapping[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _qwen3("Qwen3-0.6B", 1024, 28, 16, 3072, tied=True),
        _qwen3("Qwen3-1.7B", 2048, 28, 16, 6144, tied=True),
        _qwen3("Qwen3-4B", 2560, 36, 32, 9728, tied=True),
        _qwen3("Qwen3-8B", 4096, 36, 32, 12288),
        _qwen3("Qwen3-14B", 5120, 40, 40, 17408),
        _qwen3("Qwen3-32B", 5120, 64, 64, 25600),
        replace(
            _qwen3("Qwen3-30B-A3B", 2048, 48, 32, 768),
            kv_heads=4,
            experts=128,
            experts_per_token=8,
        ),
    )
}


def built_in(source: str) -> ModelShape | None:
    """The built-in shape that the last part of `source` names, such as hf://Qwen/Qwen3-4B-Instruct-2507."""
    name = source.rstrip("/").rpartition("/")[2]
    shape = BUILT_IN.get(_SUFFIX.sub("", name))
    if shape is None:
        return None
    return replace(shape, context=_LONG_CONTEXT) if name.endswith("2507") else shape


def shape_of(model: str) -> ModelShape:
    """The shape of a built-in name, of a folder with config.json, or of a config.json.

    Raises:
        SettingsError: it is none of these, or of a kind that isn't computed.
    """
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if path.is_file():
        try:
            config = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path} is unreadable: {error}") from error
        return from_config(config, model)
    if (shape := built_in(model)) is not None:
        return shape
    raise SettingsError(
        f"{model}: no folder with config.json, no config.json, and none of the built-in shapes: {', '.join(BUILT_IN)}"
    )


def from_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape that a config.json describes.

    Raises:
        SettingsError: it lacks a number, or its layers are of a kind that isn't computed.
    """
    kind = config.get("model_type")
    if kind not in _QK_NORM:
        raise SettingsError(f"{name}: model_type {kind} isn't computed; these are: {', '.join(_QK_NORM)}")
    sparse = kind == "qwen3_moe"
    if sparse and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
        raise SettingsError(f"{name}: a model of which some layers have no experts isn't computed")
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return ModelShape(
            name=name,
            hidden=hidden,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_width=int(config.get("head_dim") or hidden // heads),
            inner=int(config["moe_intermediate_size" if sparse else "intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            context=int(config["max_position_embeddings"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            qk_norm=_QK_NORM[kind],
            qkv_bias=kind in _QKV_BIAS,
            # num_local_experts: as transformers 5.19 writes it.
            experts=int(config.get("num_experts") or config["num_local_experts"]) if sparse else 0,
            experts_per_token=int(config["num_experts_per_tok"]) if sparse else 0,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SettingsError(f"{name}: config.json lacks a number, or has another value: {error}") from error
