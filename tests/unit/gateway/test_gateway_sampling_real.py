"""What is sampled is what is trained on: a real vLLM, behind the real gateway, scored by the trainer's own model.

The model's folder says what Qwen's say: top_k, top_p and a penalty. One server for all tests; about a minute.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)

from gymtrain_trainer.weights import ParityCheck, model_logprobs  # noqa: E402
from tests.support.real_gateway import TRAINED, asking  # noqa: E402
from tests.support.real_vllm import Expected, Server, serving_tiny_model  # noqa: E402

pytestmark = pytest.mark.torch

SAME = 1e-4  # mean |difference| of log-probabilities; measured 1e-7
TEMPERATURE = 0.8
AS_QWEN_HAS_IT = {"do_sample": True, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05, "temperature": 0.7}
NUMBER = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_tiny_model(
        tmp_path_factory.mktemp("vllm"),
        AS_QWEN_HAS_IT,
        weightSync={"transport": "None"},
        trainer={"config": {"temperature": TEMPERATURE}},
    ) as found:
        yield found


@pytest.fixture(scope="module")
def model(server: Server) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(server.folder / "model", dtype=torch.float32).eval()


def differences(model: Any, message: dict[str, Any]) -> list[float]:
    """vLLM's log-probability of each token, less the trainer's, which divides all logits by the temperature."""
    prompt, output = message["prompt_token_ids"], message["generation_token_ids"]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    scores = (logits / TEMPERATURE).log_softmax(-1)
    ours = [float(scores[place, token]) for place, token in enumerate(output)]
    return [theirs - mine for theirs, mine in zip(message["generation_log_probs"], ours, strict=True)]


def mean(values: list[float]) -> float:
    return sum(abs(value) for value in values) / len(values)


def test_the_parity_check_passes_whatever_the_models_folder_says(server: Server, model: Any) -> None:
    check = ParityCheck([[5, 6, 7], list(range(3, 99))])
    assert server.difference(Expected(check, model_logprobs(model))) < SAME


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.3, "top_p": 0.95},
        {"temperature": 0.0},
        {"top_k": 5, "min_p": 0.2, "repetition_penalty": 1.3, "presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"logit_bias": {"7": 50.0}, "min_tokens": 20, "bad_words": ["a"], "allowed_token_ids": [40, 41, 42, 43]},
    ],
)
async def test_tokens_have_the_log_probabilities_that_the_trainer_computes(
    server: Server, model: Any, asked: dict[str, Any]
) -> None:
    async with asking(server) as gateway:
        answers = [await gateway.chat(**TRAINED, **asked) for _ in range(3)]
        assert max(mean(differences(model, answer)) for answer in answers) < SAME
        assert answers[0]["generation_token_ids"] != answers[1]["generation_token_ids"]
        counted = await gateway.metrics()
    assert {name for name in asked if f'replaced_sampling_total{{setting="{name}"}} 3.0' in counted} == asked.keys()


async def test_a_call_that_is_no_policys_is_sampled_as_it_asks(server: Server) -> None:
    async with asking(server) as gateway:
        answers = [(await gateway.chat(temperature=0.0))["content"] for _ in range(2)]
    assert answers[0] == answers[1]


async def test_a_grammar_raises_log_probabilities_and_is_told(server: Server, model: Any) -> None:
    async with asking(server) as gateway:
        answer = await gateway.chat(**TRAINED, response_format=NUMBER)
        entry = gateway.entry(answer)
        counted = await gateway.metrics()
    raised = differences(model, answer)
    assert min(raised) > -SAME  # of the tokens that the grammar allows, each has a larger share
    assert mean(raised) > 0.1
    assert entry.constrained
    assert 'gymtrain_gateway_constrained_total{by="json"} 1.0' in counted
