"""Mode Verify, against real servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from gymtrain_api.wiring import VerifyRoute
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import FailureKind, RolloutError, RowRefusedError
from gymtrain_trainer.rollouts import http as http_module
from gymtrain_trainer.rollouts.answer import UnscoredError
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from gymtrain_trainer.rollouts.verify import VerifySource
from tests.unit.trainer.trainer_data import question

SAMPLING = Sampling(temperature=0.7, max_output_tokens=12)
RESPONSE: dict[str, Any] = {
    "id": "r",
    "output": [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "2"}],
            "prompt_token_ids": [1, 2],
            "generation_token_ids": [3],
            "generation_log_probs": [-0.25],
        }
    ],
    "incomplete_details": None,
}


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_BACKOFF_SECONDS", 0.01)


class Servers:
    """A model server and a resources server in one application."""

    def __init__(self, *, keeps_sessions: bool = True) -> None:
        self.verdict: Any = {"reward": 1.0, "response": {"output": []}}
        self.calls: list[str] = []
        self.bodies: dict[str, Any] = {}
        self.cookies: dict[str, str] = {}
        self.refusals = 0
        self.slow: dict[str, float] = {}  # seconds by route
        self.broken: dict[str, web.HTTPException] = {}  # what routes answer instead
        self._keeps_sessions = keeps_sessions

    def app(self) -> web.Application:
        app = web.Application()
        routes = [web.post("/model/v1/responses", self._responses), web.post("/resources/verify", self._verify)]
        if self._keeps_sessions:
            routes.append(web.post("/resources/seed_session", self._seed))
        app.add_routes(routes)
        return app

    async def _note(self, request: web.Request) -> None:
        name = request.path.rpartition("/")[2]
        self.calls.append(name)
        self.bodies[name] = await request.json()
        await asyncio.sleep(self.slow.get(name, 0.0))
        if name in self.broken:
            raise self.broken[name]

    async def _seed(self, request: web.Request) -> web.Response:
        await self._note(request)
        response = web.json_response({})
        response.set_cookie("session___arithmetic", "eyJpZCI6MX0=.sig")
        return response

    async def _responses(self, request: web.Request) -> web.Response:
        await self._note(request)
        if self.refusals:
            self.refusals -= 1
            return web.Response(status=503, text="vLLM restarts")
        response = web.json_response(RESPONSE)
        response.set_cookie("session___policy_model", "p")
        return response

    async def _verify(self, request: web.Request) -> web.Response:
        await self._note(request)
        self.cookies = dict(request.cookies)
        return web.json_response(self.verdict)


@asynccontextmanager
async def source(servers: Servers, **changes: Any) -> AsyncIterator[VerifySource]:
    runner = web.AppRunner(servers.app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    limits: dict[str, Any] = {
        "max_concurrent": 4,
        "timeout_seconds": 5.0,
        "max_attempts": 2,
        "verify_timeout_seconds": 5.0,
    }
    routes = {"adder": VerifyRoute(model_url=f"{base}/model", resources_url=f"{base}/resources")}
    try:
        async with VerifySource(RolloutLimits(**(limits | changes)), SAMPLING, routes) as made:
            yield made
    finally:
        await runner.cleanup()


TASK = Task(0, "adder", "http://unused", question(1))


async def test_the_reward_is_the_verifiers_and_the_tokens_are_the_models() -> None:
    servers = Servers()
    async with source(servers) as made:
        answer = await made.run(TASK)
    assert servers.calls == ["seed_session", "responses", "verify"]
    assert (answer.reward, list(answer.turns[0].prompt_ids), list(answer.turns[0].output_ids)) == (1.0, [1, 2], [3])
    assert list(answer.turns[0].log_probs) == [-0.25]


async def test_the_model_gets_the_rows_parameters_with_the_runs_sampling() -> None:
    servers = Servers()
    async with source(servers) as made:
        await made.run(TASK)
    sent = servers.bodies["responses"]
    assert (sent["temperature"], sent["top_p"], sent["max_output_tokens"]) == (0.7, 1.0, 12)
    assert sent["input"] == TASK.row["responses_create_params"]["input"]


async def test_the_verifier_gets_the_row_the_response_and_the_sessions_cookies() -> None:
    servers = Servers()
    async with source(servers) as made:
        await made.run(TASK)
    assert servers.bodies["verify"]["number"] == 1
    assert servers.bodies["verify"]["response"] == RESPONSE
    assert servers.cookies == {"session___arithmetic": "eyJpZCI6MX0=.sig", "session___policy_model": "p"}


async def test_a_server_without_sessions_is_asked_for_one_only_once() -> None:
    servers = Servers(keeps_sessions=False)
    async with source(servers) as made:
        assert (await made.run(TASK)).reward == 1.0
        assert (await made.run(TASK)).reward == 1.0
    assert servers.calls == ["responses", "verify"] * 2
    assert servers.cookies == {"session___policy_model": "p"}


async def test_a_failed_generation_is_tried_again_in_a_session_of_its_own() -> None:
    servers = Servers()
    servers.refusals = 1
    async with source(servers) as made:
        assert (await made.run(TASK)).reward == 1.0
    assert servers.calls == ["seed_session", "responses", "seed_session", "responses", "verify"]


async def failure(servers: Servers, **changes: Any) -> RolloutError:
    """How the rollout fails."""
    async with source(servers, max_attempts=1, **changes) as made:
        with pytest.raises(RolloutError) as failed:
            await made.run(TASK)
    return failed.value


def crashed() -> web.HTTPException:
    return web.HTTPInternalServerError(text='"Hit an exception in arithmetic (resources server): KeyError(1)"')


def unscored(error: Exception) -> list[int]:
    """The policy's tokens, which have reward 0."""
    assert isinstance(error, UnscoredError)
    assert error.answer.reward == 0.0
    return list(error.answer.turns[0].output_ids)


async def test_a_verifier_that_hangs_has_a_deadline_of_its_own_and_leaves_the_tokens() -> None:
    servers = Servers()
    servers.slow["verify"] = 2.0
    error = await failure(servers, verify_timeout_seconds=0.1)
    assert str(error).endswith("/resources/verify didn't answer within 0.1 s")
    assert (error.kind, unscored(error)) == (FailureKind.TIMEOUT, [3])


async def test_a_verifier_that_fails_on_the_answer_leaves_the_tokens() -> None:
    servers = Servers()
    servers.broken["verify"] = crashed()
    error = await failure(servers)
    assert (error.kind, unscored(error)) == (FailureKind.ENVIRONMENT, [3])


async def test_a_verifier_that_measured_nothing_is_infrastructure() -> None:
    servers = Servers()
    servers.verdict = {"reward": 0.0, "mask_sample": True, "failure_reason": "the judge was away"}
    assert (await failure(servers)).kind is FailureKind.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("route", "kind"), [("seed_session", FailureKind.INFRASTRUCTURE), ("responses", FailureKind.TIMEOUT)]
)
async def test_what_hangs_before_there_is_an_answer_leaves_no_tokens(route: str, kind: FailureKind) -> None:
    servers = Servers()
    servers.slow[route] = 2.0
    error = await failure(servers, timeout_seconds=0.1, verify_timeout_seconds=0.1)
    assert (error.kind, isinstance(error, UnscoredError)) == (kind, False)


@pytest.mark.parametrize("route", ["seed_session", "responses"])
async def test_what_fails_before_there_is_an_answer_is_infrastructure(route: str) -> None:
    servers = Servers()
    servers.broken[route] = crashed()
    error = await failure(servers)
    assert (error.kind, isinstance(error, UnscoredError)) == (FailureKind.INFRASTRUCTURE, False)


async def test_a_row_that_the_verifier_refuses_is_refused() -> None:
    servers = Servers()
    servers.broken["verify"] = web.HTTPUnprocessableEntity(text='{"detail": "no answer to compare with"}')
    assert isinstance(await failure(servers), RowRefusedError)


@pytest.mark.parametrize("verdict", [{"response": {}}, [], {"reward": "high"}])
async def test_a_verdict_without_a_reward_is_a_failure_of_the_environment(verdict: Any) -> None:
    servers = Servers()
    servers.verdict = verdict
    error = await failure(servers)
    assert (error.kind, unscored(error)) == (FailureKind.ENVIRONMENT, [3])
