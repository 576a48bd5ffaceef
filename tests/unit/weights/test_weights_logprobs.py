"""The trainer's side of the parity check, on a real model of transformers."""

import runpy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gymtrain_trainer.weights import WeightStore, model_logprobs  # noqa: E402
from gymtrain_trainer.weights.parity.check import ShardedModelError, staged_logprobs  # noqa: E402
from gymtrain_trainer.weights.store.staging import stage  # noqa: E402

pytestmark = pytest.mark.torch

PROMPT, COMPLETION = [5, 6, 7], [8, 9]


@pytest.fixture(scope="module")
def model() -> Any:
    build = runpy.run_path(str(Path(__file__).parents[3] / "images" / "model-tiny" / "build.py"))
    return build["build_model"](build["build_tokenizer"]()).eval()


def test_each_log_probability_is_of_the_token_after_its_context(model: Any) -> None:
    with torch.no_grad():
        expected = [
            float(model(torch.tensor([[5, 6, 7]])).logits[0, -1].log_softmax(-1)[8]),
            float(model(torch.tensor([[5, 6, 7, 8]])).logits[0, -1].log_softmax(-1)[9]),
        ]
    assert model_logprobs(model)(PROMPT, COMPLETION) == pytest.approx(expected, abs=1e-5)


def test_the_models_attention_and_mode_are_as_before(model: Any) -> None:
    model.config._attn_implementation, usual = "eager", model.config._attn_implementation
    model.train()
    model_logprobs(model)(PROMPT, COMPLETION)
    assert model.config._attn_implementation == "eager"
    assert model.training
    model.config._attn_implementation = usual
    model.eval()


def test_the_staged_files_compute_what_the_model_does(model: Any, tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    stage(store.begin(1, "demo:0:1"), iter(model.named_parameters()), None)
    copy = staged_logprobs(model.config, store.weights(1))
    assert copy(PROMPT, COMPLETION) == pytest.approx(model_logprobs(model)(PROMPT, COMPLETION), abs=1e-5)


def test_a_sharded_model_is_never_computed_with(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.tensor.DTensor", torch.nn.Parameter)
    with pytest.raises(ShardedModelError):
        model_logprobs(model)(PROMPT, COMPLETION)
