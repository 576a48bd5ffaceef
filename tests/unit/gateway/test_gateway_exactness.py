"""The exactness check of tests/exactness, on pods without a model."""

import aiohttp
import pytest

from tests.exactness.check import Report, run
from tests.exactness.conversations import Plan
from tests.exactness.model_server import Dialect, ModelServer
from tests.unit.gateway.conftest import Start
from tests.unit.gateway.fake_vllm import FakeVLLM

PLAN = Plan(turns=4, tools="auto", max_tokens=100, temperature=1.0)


async def play(url: str, dialect: Dialect = "0.4") -> Report:
    async with aiohttp.ClientSession() as http:
        return await run(ModelServer(http, url, dialect, reasoning=True), [url], PLAN, conversations=3, concurrent=2)


@pytest.mark.parametrize("dialect", ["0.4", "main"])
async def test_both_dialects_of_model_servers_get_exact_prefixes(start: Start, dialect: Dialect) -> None:
    pod = FakeVLLM()
    pod.answers.extend(["<think>hm</think>{add}", "done", "{say}", "<think>so</think>4"] * 3)
    bench = await start(pod)
    report = await play(bench.url, dialect)
    assert report.passed, report.problems
    assert (report.transitions, report.exact) == (9, 9)
    assert report.tool_calls
    assert report.thoughts


async def test_an_empty_block_of_reasoning_that_only_the_last_turn_gets_is_no_fork(start: Start) -> None:
    """As Qwen3's template does it with enable_thinking: false."""
    pod = FakeVLLM()
    pod.opening = "assistant\n<think></think>"
    pod.answers.extend(["4"] * 12)
    bench = await start(pod)
    report = await play(bench.url)
    assert report.passed, report.problems
    assert (report.exact, report.forked) == (9, 0)


async def test_forks_are_told_from_exact_turns(start: Start) -> None:
    pod = FakeVLLM()
    pod.answers.extend(["<think>hm</think>4"] * 12)
    pod.strip_thoughts = True
    bench = await start(pod)
    report = await play(bench.url)
    assert report.passed, report.problems
    assert (report.exact, report.forked) == (0, 9)


async def test_a_silently_broken_prefix_fails_the_check(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await start(FakeVLLM())
    monkeypatch.setattr("gymtrain_gateway.prompts.continues", lambda full, known: True)
    report = await play(bench.url)
    assert not report.passed
    assert report.wrong == 9
    assert "does not begin" in report.problems[0]
