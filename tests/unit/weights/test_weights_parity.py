"""The comparison of log-probabilities."""

import math
from typing import Any

import aiohttp
import pytest

from gymtrain_trainer.weights import ParityCheck, VllmPod, WeightParityError
from gymtrain_trainer.weights.parity.check import ParityCompletion, completions_of, judge
from gymtrain_trainer.weights.pods.client import PodClient

COMPLETIONS = [ParityCompletion([1], [2, 3], [-1.0, -2.0]), ParityCompletion([4], [5, 6], [-3.0, -4.0])]


def check(shift: float, threshold: float | None = None) -> ParityCheck:
    theirs = {tuple(one.completion): one.logprobs for one in COMPLETIONS}
    return ParityCheck(
        lambda _, completion: [value + shift for value in theirs[tuple(completion)]], [[1], [4]], threshold
    )


def test_the_mean_difference_is_over_all_tokens() -> None:
    assert judge("pod", COMPLETIONS, check(0.01), "float32") == pytest.approx(0.01)


def test_a_difference_above_the_threshold_is_refused_with_the_pod_and_a_way_out() -> None:
    with pytest.raises(WeightParityError, match=r"http://pod .* mean difference 0\.5 .*--load-format=auto"):
        judge("http://pod", COMPLETIONS, check(0.5), "float32")


def test_half_precision_may_differ_more() -> None:
    assert judge("pod", COMPLETIONS, check(0.05), "bfloat16") == pytest.approx(0.05)
    with pytest.raises(WeightParityError):
        judge("pod", COMPLETIONS, check(0.05), "float32")


def test_a_threshold_of_ones_own_wins() -> None:
    with pytest.raises(WeightParityError, match=r"allowed 0\.001"):
        judge("pod", COMPLETIONS, check(0.01, 0.001), "float32")


def test_no_number_is_no_parity() -> None:
    with pytest.raises(WeightParityError):
        judge("pod", COMPLETIONS, check(math.nan), "float32")


async def test_the_samples_are_of_the_whole_distribution_whatever_the_server_has_for_a_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []

    async def complete(client: PodClient, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        asked.append(body)
        return {"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}}]}

    monkeypatch.setattr(PodClient, "complete", complete)
    async with aiohttp.ClientSession() as session:
        await completions_of(PodClient(session, VllmPod("http://pod")), check(0.0), 1.0)
    named = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}
    assert [{name: body.get(name) for name in named} for body in asked] == [
        {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
    ] * 2
