"""The comparison of log-probabilities."""

import asyncio
import math
from typing import Any

import aiohttp
import pytest

from gymtrain_trainer.weights import Completion, ParityCheck, VllmPod, WeightParityError
from gymtrain_trainer.weights.parity.check import ParityCompletion, completions_of, judge
from gymtrain_trainer.weights.pods.client import PodClient

COMPLETIONS = [
    ParityCompletion(Completion((1,), (2, 3)), [-1.0, -2.0]),
    ParityCompletion(Completion((4,), (5, 6)), [-3.0, -4.0]),
]
CHECK = ParityCheck([[1], [4]])


def computed(*shifts: float) -> dict[Completion, list[float]]:
    """What the trainer computes: off by a shift for each completion."""
    return {
        one.completion: [value + shift for value in one.logprobs]
        for one, shift in zip(COMPLETIONS, shifts, strict=True)
    }


def test_the_mean_difference_is_over_all_tokens() -> None:
    assert judge("pod", COMPLETIONS, computed(0.01, -0.02), CHECK, "float32") == pytest.approx(0.015)


def test_a_difference_above_the_threshold_is_refused_with_the_pod_and_a_way_out() -> None:
    with pytest.raises(WeightParityError, match=r"http://pod .* mean difference 0\.5 .*--load-format=auto"):
        judge("http://pod", COMPLETIONS, computed(0.5, 0.5), CHECK, "float32")


def test_half_precision_may_differ_more() -> None:
    assert judge("pod", COMPLETIONS, computed(0.05, 0.05), CHECK, "bfloat16") == pytest.approx(0.05)
    with pytest.raises(WeightParityError):
        judge("pod", COMPLETIONS, computed(0.05, 0.05), CHECK, "float32")


def test_a_threshold_of_ones_own_wins() -> None:
    with pytest.raises(WeightParityError, match=r"allowed 0\.001"):
        judge("pod", COMPLETIONS, computed(0.01, 0.01), ParityCheck([], 0.001), "float32")


def test_no_number_is_no_parity() -> None:
    with pytest.raises(WeightParityError):
        judge("pod", COMPLETIONS, computed(math.nan, 0.0), CHECK, "float32")


async def test_all_prompts_are_asked_at_once_and_share_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    together = asyncio.Barrier(2)

    async def complete(client: PodClient, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        async with asyncio.timeout(seconds):
            await together.wait()
        return {"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}}]}

    monkeypatch.setattr(PodClient, "complete", complete)
    async with aiohttp.ClientSession() as session:
        found = await completions_of(PodClient(session, VllmPod("http://pod")), CHECK, 5.0)
    assert [one.completion for one in found] == [Completion((1,), (5,)), Completion((4,), (5,))]


async def test_the_samples_are_of_the_whole_distribution_whatever_the_server_has_for_a_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []

    async def complete(client: PodClient, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        asked.append(body)
        return {"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}}]}

    monkeypatch.setattr(PodClient, "complete", complete)
    async with aiohttp.ClientSession() as session:
        await completions_of(PodClient(session, VllmPod("http://pod")), CHECK, 1.0)
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
