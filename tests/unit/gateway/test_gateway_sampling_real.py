"""What is sampled is what is trained on: a real vLLM, behind the real gateway, scored by the trainer's own model.

The model's folder says what Qwen's say: top_k, top_p and a penalty. One server for all tests; about a minute.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

torch = pytest.importorskip("torch")
if find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)

from gymtrain_api.ledger import LedgerQuestion, token_digest  # noqa: E402
from gymtrain_gateway import settings  # noqa: E402
from gymtrain_gateway.app import CallDrain, Gateway  # noqa: E402
from gymtrain_gateway.pods import Pods  # noqa: E402
from gymtrain_gateway.upstream import Upstream, session  # noqa: E402
from gymtrain_trainer.weights import ParityCheck, model_logprobs  # noqa: E402
from tests.support.real_vllm import Expected, Server, serving_tiny_model  # noqa: E402

pytestmark = pytest.mark.torch

SAME = 1e-4  # mean |difference| of log-probabilities; measured 1e-7
TEMPERATURE = 0.8
AS_QWEN_HAS_IT = {"do_sample": True, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05, "temperature": 0.7}
# As Gym's model server asks for the tokens of a policy (nemo-gym 0.4, vllm_model/app.py).
TRAINED = {"logprobs": True, "top_logprobs": 0, "return_tokens_as_token_ids": True}
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


class Asked:
    """The gateway, and calls of it."""

    def __init__(self, gateway: Gateway, url: str, http: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self._url = url
        self._http = http

    async def chat(self, **more: Any) -> dict[str, Any]:
        """The message that answers."""
        question = {"role": "user", "content": "What is 3 + 5?"}
        body = {"model": "policy", "messages": [question], "max_completion_tokens": 24, **more}
        async with self._http.post(f"{self._url}/v1/chat/completions", json=body) as response:
            document = await response.json()
        assert response.status == 200, document
        message: dict[str, Any] = document["choices"][0]["message"]
        return message

    async def metrics(self) -> str:
        async with self._http.get(f"{self._url}/metrics") as response:
            return await response.text()


@asynccontextmanager
async def asking(server: Server) -> AsyncIterator[Asked]:
    """The gateway as its pod starts it, but for addresses."""
    read = settings.read(server.folder / "run.json")
    read = replace(read, pods_host="vllm", pods_port=server.port)

    async def find(host: str, port: int) -> list[str] | None:
        return [f"http://127.0.0.1:{server.port}"] if host == "vllm" else []

    http, probes, client = session(10), session(0), aiohttp.ClientSession()
    pods = Pods(read, probes, find)
    gateway = Gateway(read, pods, Upstream(http), CallDrain(0.01, 1.0))
    listening = TestServer(gateway.app(), host="127.0.0.1")
    await listening.start_server()
    watching = asyncio.create_task(pods.run())
    try:
        until = time.monotonic() + 30
        while not pods.admissible():
            assert time.monotonic() < until, pods.reason()
            await asyncio.sleep(0.1)
        yield Asked(gateway, f"http://127.0.0.1:{listening.port}", client)
    finally:
        await client.close()
        await listening.close()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await http.close()
        await probes.close()


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
        digest = token_digest(answer["prompt_token_ids"], answer["generation_token_ids"])
        (entry,) = gateway.gateway.ledger.answer(LedgerQuestion(digests=[digest])).entries.values()
        counted = await gateway.metrics()
    raised = differences(model, answer)
    assert min(raised) > -SAME  # of the tokens that the grammar allows, each has a larger share
    assert mean(raised) > 0.1
    assert entry.constrained
    assert 'gymtrain_gateway_constrained_total{by="json"} 1.0' in counted
