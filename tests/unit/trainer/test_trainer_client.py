"""One rollout over HTTP, against a real server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gymtrain_api.spec import OnFailure
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import AgentError, AnswerError, FailureKind, RolloutError, RowRefusedError
from gymtrain_trainer.rollouts import http as http_module
from gymtrain_trainer.rollouts.answer import UnscoredError
from gymtrain_trainer.rollouts.client import AgentSource
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling, request_body
from tests.unit.trainer.trainer_agent import Agent, good_answer, inner_server_died
from tests.unit.trainer.trainer_data import question

SAMPLING = Sampling(temperature=0.7, max_output_tokens=12)


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_BACKOFF_SECONDS", 0.01)


def task(url: str, row: dict[str, Any]) -> Task:
    return Task(0, "adder", url, row)


def limits(**changes: Any) -> RolloutLimits:
    return RolloutLimits(**({"max_concurrent": 8, "timeout_seconds": 5.0, "max_attempts": 3} | changes))


async def test_sampling_settings_are_put_into_the_request() -> None:
    async with Agent() as agent, AgentSource(limits(), SAMPLING) as client:
        await client.run(task(agent.url, question(1)))
    params = agent.requests[0]["responses_create_params"]
    assert (params["temperature"], params["top_p"], params["max_output_tokens"]) == (0.7, 1.0, 12)
    assert agent.requests[0]["number"] == 1


def test_the_row_itself_is_left_as_it_is() -> None:
    row = question(1)
    request_body(row, SAMPLING)
    assert "temperature" not in row["responses_create_params"]


def test_null_in_the_rows_request_is_left_out_and_the_rows_own_fields_are_not() -> None:
    row = {"responses_create_params": {"input": "q", "metadata": None}, "expected_answer": None}
    sent = request_body(row, SAMPLING)
    assert "metadata" not in sent["responses_create_params"]
    assert sent["expected_answer"] is None


async def test_no_cookie_is_kept_between_rollouts() -> None:
    async with Agent() as agent, AgentSource(limits(), SAMPLING) as client:
        await client.run(task(agent.url, question(1)))
        await client.run(task(agent.url, question(1)))
    assert agent.cookies == [{}, {}]


async def test_a_failed_try_is_repeated_and_heard_of() -> None:
    heard: list[RolloutError] = []
    async with (
        Agent(lambda row, number: inner_server_died() if number == 1 else good_answer(row)) as agent,
        AgentSource(limits(), SAMPLING, heard.append) as client,
    ):
        answer = await client.run(task(agent.url, question(1)))
    assert answer.reward == 1.0
    assert len(heard) == 1


async def test_tries_end_at_their_limit_with_what_the_agent_said() -> None:
    async with Agent(lambda row, number: inner_server_died()) as agent, AgentSource(limits(), SAMPLING) as client:
        with pytest.raises(AgentError, match=r"answered 500: a server that adder called: gone$"):
            await client.run(task(agent.url, question(1)))
    assert len(agent.requests) == 3


@contextlib.asynccontextmanager
async def endless(status: int) -> AsyncIterator[str]:
    """The URL of an agent whose answers never end."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"out of disk " * 1000)
        return response

    app = web.Application()
    app.add_routes([web.post("/run", answer)])
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def test_an_error_without_end_is_read_up_to_a_bound() -> None:
    async with endless(500) as url, AgentSource(limits(timeout_seconds=60, max_attempts=1), SAMPLING) as client:
        with pytest.raises(AgentError, match=r"answered 500: out of disk") as failed:
            await client.run(task(url, question(1)))
    assert len(str(failed.value)) < 500


async def test_an_answer_without_end_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_ANSWER_BYTES", 2 << 20)
    async with endless(200) as url, AgentSource(limits(timeout_seconds=20, max_attempts=1), SAMPLING) as client:
        with pytest.raises(AgentError, match=r"/run answered more than 2 MiB$"):
            await client.run(task(url, question(1)))


async def test_a_row_that_the_agent_refuses_is_not_tried_again() -> None:
    async with (
        Agent(lambda row, number: web.json_response({"detail": "extra field"}, status=422)) as agent,
        AgentSource(limits(), SAMPLING) as client,
    ):
        with pytest.raises(RowRefusedError, match="422"):
            await client.run(task(agent.url, question(1)))
    assert len(agent.requests) == 1


async def test_an_agent_that_never_answers_runs_into_the_deadline() -> None:
    async def hang(row: dict[str, Any], number: int) -> web.Response:
        await asyncio.sleep(30)
        return good_answer(row)

    async with Agent(hang) as agent, AgentSource(limits(timeout_seconds=0.2, max_attempts=1), SAMPLING) as client:
        with pytest.raises(AgentError, match=r"didn't answer within 0\.2 s") as failed:
            await client.run(task(agent.url, question(1)))
    assert failed.value.kind is FailureKind.TIMEOUT


async def test_nobody_listening_is_a_failure_of_the_agent() -> None:
    async with AgentSource(limits(max_attempts=2), SAMPLING) as client:
        with pytest.raises(AgentError, match=r"http://127\.0\.0\.1:9/run") as failed:
            await client.run(task("http://127.0.0.1:9", question(1)))
    assert failed.value.kind is FailureKind.INFRASTRUCTURE


async def test_a_connection_that_never_comes_is_infrastructure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: object, **kwargs: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr("aiohappyeyeballs.start_connection", never)
    monkeypatch.setattr(http_module, "_CONNECT_SECONDS", 0.1)
    async with AgentSource(limits(max_attempts=1), SAMPLING) as client:
        with pytest.raises(AgentError, match=r"/run: no connection within 0\.1 s") as failed:
            await client.run(task("http://127.0.0.1:9", question(1)))
    assert failed.value.kind is FailureKind.INFRASTRUCTURE


def environment_failed() -> web.Response:
    return web.json_response("Hit an exception in adder (agent server): KeyError('a')", status=500)


@pytest.mark.parametrize(("action", "tries"), [("Retry", 3), ("DropRollout", 1), ("Zero", 1)])
async def test_only_a_failure_of_a_kind_that_is_retried_has_further_tries(action: Any, tries: int) -> None:
    policy = OnFailure(environment=action)
    async with (
        Agent(lambda row, number: environment_failed()) as agent,
        AgentSource(limits(on_failure=policy), SAMPLING) as client,
    ):
        with pytest.raises(AgentError, match=r"500: adder: KeyError\('a'\)$") as failed:
            await client.run(task(agent.url, question(1)))
    assert (len(agent.requests), failed.value.kind) == (tries, FailureKind.ENVIRONMENT)


async def test_each_try_goes_by_its_own_kind() -> None:
    policy = OnFailure(infrastructure="Retry", environment="DropRollout")
    async with (
        Agent(lambda row, number: inner_server_died() if number == 1 else environment_failed()) as agent,
        AgentSource(limits(max_attempts=9, on_failure=policy), SAMPLING) as client,
    ):
        with pytest.raises(AgentError):
            await client.run(task(agent.url, question(1)))
    assert len(agent.requests) == 2


async def test_tokens_without_a_reward_are_kept_for_a_zero() -> None:
    async with (
        Agent(lambda row, number: good_answer(row, reward=float("nan"))) as agent,
        AgentSource(limits(max_attempts=1), SAMPLING) as client,
    ):
        with pytest.raises(UnscoredError, match="reward is nan, not a number") as failed:
            await client.run(task(agent.url, question(1)))
    assert failed.value.kind is FailureKind.ENVIRONMENT
    assert (failed.value.answer.reward, list(failed.value.answer.turns[0].output_ids)) == (0.0, [7, 8])


async def test_an_answer_without_tokens_is_a_failure() -> None:
    async with (
        Agent(lambda row, number: good_answer(row, output=[])) as agent,
        AgentSource(limits(), SAMPLING) as client,
    ):
        with pytest.raises(AnswerError, match="no token ids") as failed:
            await client.run(task(agent.url, question(1)))
    assert failed.value.kind is FailureKind.INFRASTRUCTURE


async def test_no_more_rollouts_are_in_flight_than_allowed() -> None:
    async def slow(row: dict[str, Any], number: int) -> web.Response:
        await asyncio.sleep(0.02)
        return good_answer(row)

    async with Agent(slow) as agent, AgentSource(limits(max_concurrent=3), SAMPLING) as client:
        await asyncio.gather(*(client.run(task(agent.url, question(n))) for n in range(12)))
    assert agent.most_at_once == 3
