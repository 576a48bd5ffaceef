"""The bytes of activations that sizing computes are those of transformers' own layers and TRL's own head, or some more.

A step is done on fake tensors, which have shapes and no data, and every block of memory that it takes is counted. Only
the attention is replaced, by one that keeps what torch's variable-length attention keeps.
"""

import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gymtrain_trainer.sizing.shapes import BUILT_IN, ModelShape, from_config
from gymtrain_trainer.sizing.training import Training, gpu

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.torch

ATTENTION = "sizing_test"
LAYERS = 2
DENSE = replace(BUILT_IN["Qwen3-0.6B"], layers=LAYERS, vocabulary=8192)
UNTIED = replace(DENSE, tied=False)
SPARSE = replace(BUILT_IN["Qwen3-30B-A3B"], layers=LAYERS, vocabulary=8192, experts=16)
DEEP = replace(DENSE, layers=12)
LLAMA = replace(DENSE, name="llama", qk_norm=False)


@pytest.fixture(autouse=True)
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention, and the kernels of the head, which on a GPU take no memory of their own."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from trl.kernels import chunked_logprob

    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, lambda **_: None)
    monkeypatch.setattr(chunked_logprob, "_forward_tile", lambda *_, **__: None)
    monkeypatch.setattr(chunked_logprob, "_backward_tile", lambda *_, **__: None)
    monkeypatch.setattr(chunked_logprob, "_addmm_fp32", lambda *_: None)


def attention(
    module: Any, query: "torch.Tensor", key: "torch.Tensor", value: "torch.Tensor", mask: Any, **_: Any
) -> tuple["torch.Tensor", None]:
    """As trl/attention.py on a GPU, but for the kernel."""
    import torch

    class Kernel(torch.autograd.Function):  # type: ignore[misc]  # torch is not installed where types are checked
        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(tensors[0])
            ctx.save_for_backward(*tensors, out)
            return out

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3])

    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    query, key, value = (part.transpose(1, 2)[0].to(dtype) for part in (query, key, value))
    index = torch.arange(query.shape[0])
    out: torch.Tensor = Kernel.apply(query, key.index_select(0, index), value.index_select(0, index))
    return out.unsqueeze(0), None


class Live:
    """Bytes of all blocks of memory that are in use, and the most that were."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def see(self, tensor: "torch.Tensor") -> None:
        """Counts its block, until it is freed."""
        block = tensor.untyped_storage()
        if block in self._known:
            return
        self._known[block] = True
        size = block.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(block, self._free, size)

    def _free(self, size: int) -> None:
        self.now -= size


def counting(live: Live) -> Any:
    """A mode in which everything that torch makes is seen."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            for leaf in tree_leaves(made):
                if isinstance(leaf, torch.Tensor):
                    live.see(leaf)
            return made

    return Mode()


def model_of(shape: ModelShape) -> Any:
    """The model of transformers with this shape."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    common = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "tie_word_embeddings": shape.tied,
    }
    if shape.experts:
        experts = {"num_experts": shape.experts, "num_experts_per_tok": shape.experts_per_token}
        config = Qwen3MoeConfig(moe_intermediate_size=shape.inner, **experts, **common)
        return Qwen3MoeForCausalLM._from_config(config, attn_implementation=ATTENTION)
    if not shape.qk_norm:
        config = LlamaConfig(intermediate_size=shape.inner, **common)
        return LlamaForCausalLM._from_config(config, attn_implementation=ATTENTION)
    config = Qwen3Config(intermediate_size=shape.inner, **common)
    return Qwen3ForCausalLM._from_config(config, attn_implementation=ATTENTION)


def step(training: Training) -> Iterator[int]:
    """Bytes beside weights and gradients: what is kept after forward, and the most of the whole step."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from trl.trainer.utils import add_fused_lm_head

    live, tokens = Live(), training.tokens
    with FakeTensorMode(allow_non_fake_inputs=True), counting(live):
        torch.set_default_dtype(torch.bfloat16 if training.sharded else torch.float32)
        try:
            model = model_of(training.shape)
        finally:
            torch.set_default_dtype(torch.float32)
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        if training.checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)  # as in the second micro-batch of a step
        before = live.most = live.now
        row = torch.zeros(1, tokens, dtype=torch.long)
        with nullcontext() if training.sharded else torch.autocast("cpu", torch.bfloat16):
            out = model(
                input_ids=row,
                position_ids=torch.arange(tokens).unsqueeze(0),
                attention_mask=torch.ones_like(row),
                shift_labels=row,
                fused_lm_head=True,
                use_cache=False,
            )
        yield live.now - before
        out.log_probs.sum().backward()
        yield live.most - before


def computed(training: Training) -> tuple[int, int]:
    """The same by sizing."""
    parts = {part.name: part.bytes for part in gpu(training).parts}
    return parts["activations"], parts["activations"] + parts["working memory"]


@pytest.mark.parametrize("tokens", [4096, 16384])
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("sharded", [False, True], ids=["autocast", "bf16"])
@pytest.mark.parametrize("shape", [DENSE, UNTIED, LLAMA], ids=["tied", "untied", "llama"])
def test_a_step_holds_what_sizing_computes(shape: ModelShape, sharded: bool, checkpointing: bool, tokens: int) -> None:
    training = Training(shape, gpus=8, sharded=sharded, checkpointing=checkpointing, tokens=tokens)
    kept, most = step(training)
    expected_kept, expected_most = computed(training)
    assert 0.78 < kept / expected_kept < 1.03
    assert 0.78 < most / expected_most < 1.03


def test_autocast_keeps_copies_of_all_layers_until_forward_ends() -> None:
    training = Training(DEEP, tokens=512)
    _, most = step(training)
    assert 0.9 < most / computed(training)[1] < 1.03
    assert most > 2 * DEEP.layers * DEEP.layer_parameters


@pytest.mark.parametrize("tokens", [4096, 16384])
def test_a_step_of_a_mixture_of_experts_holds_what_sizing_computes(tokens: int) -> None:
    training = Training(SPARSE, gpus=8, sharded=True, tokens=tokens)
    _, most = step(training)
    assert 0.78 < most / computed(training)[1] < 1.03


@pytest.mark.parametrize("sharded", [False, True], ids=["autocast", "bf16"])
@pytest.mark.parametrize("shape", [DENSE, LLAMA], ids=["qwen3", "llama"])
def test_a_layer_keeps_what_sizing_computes_of_each_token(shape: ModelShape, sharded: bool) -> None:
    """To three per cent: the difference between models of one and of two layers."""
    tokens = 16384
    asked = Training(shape, gpus=8, sharded=sharded, checkpointing=False, tokens=tokens)
    one, two = (next(step(replace(asked, shape=replace(shape, layers=n)))) for n in (1, 2))
    weights = 0 if sharded else 2 * shape.layer_parameters
    of_token = (two - one - weights) / tokens
    assert of_token == pytest.approx(shape.activations(autocast=not sharded).saved, rel=0.03)


@pytest.mark.parametrize("shape", [DENSE, UNTIED, LLAMA, SPARSE], ids=["tied", "untied", "llama", "experts"])
def test_parameters_are_those_of_transformers(shape: ModelShape) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        model = model_of(shape)
    sizes = [parameter.numel() for parameter in model.parameters()]
    assert sum(sizes) == shape.parameters
    assert sorted(sizes) == sorted(shape.tensors())


def test_a_config_of_transformers_has_the_shape_that_made_it() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        config = model_of(SPARSE).config.to_dict()
    assert replace(from_config(config, SPARSE.name), context=SPARSE.context) == SPARSE
