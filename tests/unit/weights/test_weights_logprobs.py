"""The trainer's side of the parity check, on a real model of transformers."""

import runpy
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gymtrain_trainer.weights import Completion, model_logprobs  # noqa: E402

pytestmark = pytest.mark.torch

SEQUENCE = Completion((5, 6, 7), (8, 9))
OTHERS = [Completion((5, 6, 7), (9, 8)), SEQUENCE, Completion((4,), (5, 6, 7)), SEQUENCE, Completion((3, 3, 3), (2, 4))]


@pytest.fixture(scope="module")
def model() -> Any:
    build = runpy.run_path(str(Path(__file__).parents[3] / "images" / "model-tiny" / "build.py"))
    return build["build_model"](build["build_tokenizer"]()).eval()


@pytest.fixture
def sizes(model: Any) -> Iterator[list[tuple[int, ...]]]:
    """Of the input of each forward pass."""
    found: list[tuple[int, ...]] = []
    hook = model.register_forward_pre_hook(
        lambda module, arguments, named: found.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    yield found
    hook.remove()


@pytest.fixture
def sharded(model: Any) -> Iterator[Any]:
    """As accelerate shards a model, here over a group of one: each layer, and the rest."""
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        found = deepcopy(model)
        for layer in found.model.layers:
            fully_shard(layer, mesh=mesh)
        yield fully_shard(found, mesh=mesh)
    finally:
        torch.distributed.destroy_process_group()


def gathered(module: Any) -> list[str]:
    """Parameters of which this process has more than its share."""
    from torch.distributed.tensor import DTensor

    return [name for name, parameter in module.named_parameters() if not isinstance(parameter, DTensor)]


def test_each_log_probability_is_of_the_token_after_its_context(model: Any) -> None:
    with torch.no_grad():
        expected = [
            float(model(torch.tensor([[5, 6, 7]])).logits[0, -1].log_softmax(-1)[8]),
            float(model(torch.tensor([[5, 6, 7, 8]])).logits[0, -1].log_softmax(-1)[9]),
        ]
    assert model_logprobs(model)([SEQUENCE]) == [pytest.approx(expected, abs=1e-5)]


def test_several_completions_are_computed_as_each_alone(model: Any) -> None:
    logprobs = model_logprobs(model)
    alone = [pytest.approx(logprobs([one])[0], abs=1e-5) for one in OTHERS]
    assert logprobs(OTHERS) == alone


def test_completions_of_the_same_lengths_take_one_forward_pass_and_none_is_computed_twice(
    model: Any, sizes: list[tuple[int, ...]]
) -> None:
    model_logprobs(model)(OTHERS)
    assert sizes == [(3, 5), (1, 4)]


def test_a_forward_pass_has_a_limit(model: Any, sizes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymtrain_trainer.weights.parity.check._TOKENS_AT_ONCE", 10)
    model_logprobs(model)(OTHERS)
    assert sizes == [(2, 5), (1, 5), (1, 4)]


def test_the_models_attention_and_mode_are_as_before(model: Any) -> None:
    model.config._attn_implementation, usual = "eager", model.config._attn_implementation
    model.train()
    model_logprobs(model)([SEQUENCE])
    assert model.config._attn_implementation == "eager"
    assert model.training
    model.config._attn_implementation = usual
    model.eval()


def test_a_sharded_model_computes_as_a_whole_one(model: Any, sharded: Any) -> None:
    expected = [pytest.approx(found, abs=1e-5) for found in model_logprobs(model)(OTHERS)]
    assert model_logprobs(sharded)(OTHERS) == expected


def test_while_one_layer_of_a_sharded_model_computes_the_others_are_not_gathered(sharded: Any) -> None:
    seen: list[list[int]] = []
    layers = sharded.model.layers
    for layer in layers:
        layer.mlp.register_forward_pre_hook(
            lambda *_: seen.append([number for number, one in enumerate(layers) if gathered(one)])
        )
    model_logprobs(sharded)([SEQUENCE])
    assert seen == [[number] for number in range(len(layers))]


def test_afterwards_nothing_of_a_sharded_model_is_gathered(sharded: Any) -> None:
    model_logprobs(sharded)([SEQUENCE])
    assert gathered(sharded) == []
