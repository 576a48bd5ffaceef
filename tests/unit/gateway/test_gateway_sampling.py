"""The run's sampling in place of what calls ask for, and what holds answers to a grammar."""

import json
from typing import Any

import pytest

from gymtrain_api.ledger import LedgerEntry, LedgerQuestion, token_digest
from gymtrain_api.sampling import evaluation_temperature, is_marked, marked
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.wiring import RunConfig
from gymtrain_gateway.settings import from_run
from tests.support.specs import smallest_run
from tests.unit.gateway.conftest import Bench, Start
from tests.unit.gateway.fake_vllm import FakeVLLM

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
THE_RUNS = {
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def request(**more: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": [{"role": "user", "content": "q"}], **more}


def entry_of(bench: Bench, message: dict[str, Any]) -> LedgerEntry:
    digest = token_digest(message["prompt_token_ids"], message["generation_token_ids"])
    return bench.gateway.ledger.answer(LedgerQuestion(digests=[digest])).entries[digest]


async def test_what_a_call_leaves_out_is_no_default_of_the_server(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    _, document, _ = await bench.post(CHAT, request(logprobs=True))
    assert pod.rendered[0].items() >= THE_RUNS.items()
    assert entry_of(bench, document["choices"][0]["message"]).replaced == ()
    assert "replaced_sampling_total{" not in (await bench.get("/metrics"))[1]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", 0.7),
        ("temperature", 0),
        ("top_p", 0.95),
        ("top_k", 20),
        ("min_p", 0.05),
        ("repetition_penalty", 1.05),
        ("presence_penalty", 1.5),
        ("frequency_penalty", -0.5),
        ("logit_bias", {"5": 10}),
        ("allowed_token_ids", [1, 2]),
        ("bad_words", ["no"]),
        ("min_tokens", 4),
        ("thinking_token_budget", 0),
        ("use_beam_search", True),
        ("seed", 0),
    ],
)
async def test_what_training_cannot_account_for_is_replaced_and_told(start: Start, setting: str, value: Any) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    status, document, _ = await bench.post(CHAT, request(logprobs=True, **{setting: value}))
    assert status == 200
    assert pod.rendered[0].get(setting) == THE_RUNS.get(setting)
    assert entry_of(bench, document["choices"][0]["message"]).replaced == (setting,)
    assert f'replaced_sampling_total{{setting="{setting}"}} 1.0' in (await bench.get("/metrics"))[1]


async def test_asking_for_what_the_run_does_is_no_difference(start: Start) -> None:
    bench = await start(FakeVLLM())
    same: dict[str, Any] = THE_RUNS | {
        "top_k": -1,
        "top_p": 1,
        "min_tokens": 0,
        "logit_bias": {},
        "seed": None,
        "stop": ["x"],
    }
    _, document, _ = await bench.post(CHAT, request(logprobs=True, **same))
    assert entry_of(bench, document["choices"][0]["message"]).replaced == ()


async def test_what_ends_an_answer_is_left_to_the_call(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    ends = {"stop": ["x"], "stop_token_ids": [7], "ignore_eos": True, "max_tokens": 9}
    await bench.post(CHAT, request(logprobs=True, **ends))
    assert pod.rendered[0].items() >= ends.items()


async def test_a_call_whose_answer_carries_no_tokens_is_sampled_as_it_asks(start: Start) -> None:
    pod = FakeVLLM()
    pod.grammar = {"json": {}}
    bench = await start(pod)
    asked = {"temperature": 0.0, "top_p": 0.5, "seed": 1}
    await bench.post(CHAT, request(**asked))
    assert pod.rendered[0].items() >= asked.items()
    assert "top_k" not in pod.rendered[0]
    metrics = (await bench.get("/metrics"))[1]
    assert "replaced_sampling_total{" not in metrics
    assert "constrained_total{" not in metrics


async def test_a_conversation_that_carries_tokens_is_the_policys_whatever_its_call_asks(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    _, document, _ = await bench.post(CHAT, request(logprobs=True))
    history = [*request()["messages"], document["choices"][0]["message"], {"role": "user", "content": "more"}]
    await bench.post(CHAT, request(messages=history, temperature=0.1))
    assert pod.rendered[-1]["temperature"] == 0.9


async def test_completions_that_carry_tokens_are_sampled_the_same_way(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    body = {"model": "policy", "prompt": "q", "top_k": 5}
    await bench.post(COMPLETIONS, body | {"return_token_ids": True, "response_format": {"type": "json_object"}})
    (entry,) = bench.gateway.ledger.answer(LedgerQuestion(digests=[token_digest([1, 2], [3])])).entries.values()
    assert pod.rendered[0].items() >= THE_RUNS.items()
    assert (entry.replaced, entry.constrained) == (("top_k",), True)
    await bench.post(COMPLETIONS, body)
    assert pod.rendered[1].items() >= body.items()


@pytest.mark.parametrize(
    ("grammar", "kind"),
    [
        (None, ""),
        ({"json": {"type": "integer"}}, "json"),
        ({"json_object": True}, "json_object"),
        ({"json": None, "json_object": False, "structural_tag": "{}"}, "structural_tag"),
    ],
)
async def test_answers_that_a_grammar_held_are_counted_and_in_the_ledger(
    start: Start, grammar: dict[str, Any] | None, kind: str
) -> None:
    pod = FakeVLLM()
    pod.grammar = grammar
    bench = await start(pod)
    _, document, _ = await bench.post(CHAT, request(logprobs=True))
    assert entry_of(bench, document["choices"][0]["message"]).constrained is bool(kind)
    counted = f'constrained_total{{by="{kind}"}} 1.0' in (await bench.get("/metrics"))[1]
    assert counted is bool(kind)


@pytest.mark.parametrize(("config", "temperature"), [({}, 1.0), ({"temperature": 0.6}, 0.6), ({"temperature": 1}, 1.0)])
def test_the_temperature_is_the_trainers(config: dict[str, Any], temperature: float) -> None:
    spec = GymTrainingRunSpec.model_validate(smallest_run(trainer={"config": config})["spec"])
    run = RunConfig(
        name="r", namespace="n", spec=spec, inference_url="", inference_pods_host="", trainer_host="trainer"
    )
    assert from_run(run).temperature == temperature


async def test_a_call_for_an_evaluation_is_sampled_at_its_temperature_and_both_are_in_the_ledger(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod, evaluation_temperature=0.0)
    asked = [marked(0.0), 0.9, 0.0, None]
    entries = []
    for number, temperature in enumerate(asked):
        body = request(logprobs=True, messages=[{"role": "user", "content": f"q{number}"}], temperature=temperature)
        _, document, _ = await bench.post(CHAT, body)
        entries.append(entry_of(bench, document["choices"][0]["message"]))
    sampled = [request["temperature"] for request in pod.rendered]
    assert sampled == [0.0, 0.9, 0.9, 0.9], "a round number of an agent's own is no mark"
    assert [entry.temperatures for entry in entries] == [(0.0,), (0.9,), (0.9,), (0.9,)]
    assert [entry.replaced for entry in entries] == [(), (), ("temperature",), ()]


async def test_with_one_temperature_the_ledger_says_nothing_of_it_and_a_mark_is_replaced(start: Start) -> None:
    pod = FakeVLLM()
    bench = await start(pod)
    _, document, _ = await bench.post(CHAT, request(logprobs=True, temperature=marked(0.0)))
    assert pod.rendered[0]["temperature"] == 0.9
    assert entry_of(bench, document["choices"][0]["message"]).temperatures == ()


@pytest.mark.parametrize("temperature", [0.0, 0.01, 0.6, 1.0, 2.0])
def test_a_mark_is_known_after_json_and_no_number_that_people_write(temperature: float) -> None:
    assert is_marked(json.loads(json.dumps(marked(temperature))), temperature)
    assert 0 <= marked(temperature) <= 2
    assert not any(is_marked(number / 1000, temperature) for number in range(2001))


def test_the_temperature_of_evaluations_comes_from_the_run() -> None:
    def of(**evaluation: Any) -> float | None:
        data = {"train": [{"source": "pvc://a/b"}], "validation": [{"source": "pvc://a/c"}]}
        run = smallest_run(data=data, evaluation=evaluation, trainer={"config": {"temperature": 0.8}})
        return evaluation_temperature(GymTrainingRunSpec.model_validate(run["spec"]))

    assert (of(), of(temperature="0"), of(temperature="0.8"), of(temperature="1")) == (None, 0.0, None, 1.0)
