"""The trainer's requests and what it reads of the answers, with unmodified NeMo Gym servers under the launcher."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio

from gymtrain_api.wiring import VerifyRoute
from gymtrain_gym.server import workspace
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import AgentError, FailureKind, RolloutError
from gymtrain_trainer.rollouts.answer import Answer, UnscoredError
from gymtrain_trainer.rollouts.client import AgentSource
from gymtrain_trainer.rollouts.http import HttpSource
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from gymtrain_trainer.rollouts.verify import VerifySource
from tests.support.fake_policy import Message
from tests.support.gym_cluster import PolicyCluster, resources_server, simple_agent

pytestmark = [pytest.mark.gym, pytest.mark.asyncio(loop_scope="module")]

COMPARISON = "single_step_tool_use_with_argument_comparison"
LIMITS = RolloutLimits(max_concurrent=4, timeout_seconds=60.0, max_attempts=1, verify_timeout_seconds=60.0)
SAMPLING = Sampling(temperature=1.0, max_output_tokens=64)


def reply(messages: list[Message]) -> Message:
    return {"content": "Let me look.", "tool_calls": [_call("search", "{}")]}


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


class Servers(PolicyCluster):
    """The cluster of this module."""

    def source(self, mode: Literal["Agent", "Verify"]) -> HttpSource:
        if mode == "Agent":
            return AgentSource(LIMITS, SAMPLING)
        route = VerifyRoute(model_url=self.url("policy_model", ""), resources_url=self.url("comparison", ""))
        return VerifySource(LIMITS, SAMPLING, {"steps": route})

    async def rollout(
        self, row: dict[str, Any], agent: str = "steps", mode: Literal["Agent", "Verify"] = "Agent"
    ) -> Answer:
        async with self.source(mode) as source:
            return await source.run(Task(0, agent, self.url(agent, ""), row))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    settings = simple_agent("comparison")["responses_api_agents"]["simple_agent"]
    comparison = resources_server(COMPARISON)
    comparison["resources_servers"][COMPARISON]["tool_call_comparator_config"] = {
        "word_count_similarity_threshold": 0.0
    }
    config = {
        "comparison": comparison,
        "steps": {"responses_api_agents": {"tool_simulation_agent": settings}},
        "turns": simple_agent("comparison"),
    }
    folder = tmp_path_factory.mktemp("servers")
    async with Servers.started(folder, reply, config, ["comparison", "steps", "turns"]) as servers:
        yield servers


def example_rows() -> list[dict[str, Any]]:
    """Upstream's own, which write null for what they leave open."""
    file = workspace.find(Path(f"resources_servers/{COMPARISON}/data/example.jsonl"), workspace.roots())
    assert file is not None
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("mode", ["Agent", "Verify"])
async def test_upstreams_own_rows_with_nulls_are_answered(servers: Servers, mode: Literal["Agent", "Verify"]) -> None:
    rows = example_rows()
    assert all(row["responses_create_params"]["metadata"] is None for row in rows)
    rewards = [(await servers.rollout(row, mode=mode)).reward for row in rows]
    assert len(rewards) == len(rows)


async def test_a_tool_without_description_is_answered_and_its_schema_is_left_alone(servers: Servers) -> None:
    row = example_rows()[0]
    parameters = {"type": "object", "properties": {"page": {"type": "integer", "default": None}}}
    tool = {"type": "function", "name": "search", "description": None, "strict": None, "parameters": parameters}
    row["responses_create_params"]["tools"] = [tool]
    await servers.rollout(row)
    (sent,) = servers.policy.requests[-1]["tools"]
    assert sent["function"] == {"name": "search", "parameters": parameters}


async def test_an_error_of_the_model_server_is_told_by_its_name_and_without_its_wrapping(servers: Servers) -> None:
    """The agent's /run calls its own /v1/responses, which calls the model server: two servers pass the error on."""
    row = example_rows()[0]
    row["responses_create_params"]["metadata"] = {"extra_body": '{it\'s "no" JSON'}
    with pytest.raises(AgentError) as failed:
        await servers.rollout(row, agent="turns")
    assert str(failed.value) == (
        f"{servers.url('turns', '/run')} answered 500: policy_model, called by turns: "
        "JSONDecodeError('Expecting property name enclosed in double quotes: line 1 column 2 (char 1)')"
    )
    assert failed.value.kind is FailureKind.INFRASTRUCTURE


async def test_a_row_that_the_verifier_refuses_is_told_by_the_verifiers_name_and_field(servers: Servers) -> None:
    row = example_rows()[0]
    del row["expected_action"]
    with pytest.raises(
        AgentError, match=r"comparison, called by steps: body\.expected_action: Field required$"
    ) as failed:
        await servers.rollout(row)
    assert failed.value.kind is FailureKind.INFRASTRUCTURE


@pytest.mark.parametrize("mode", ["Agent", "Verify"])
async def test_an_exception_of_the_verifier_is_a_failure_of_the_environment(
    servers: Servers, mode: Literal["Agent", "Verify"]
) -> None:
    row = example_rows()[0]
    row["expected_action"] = {"type": "function_call", "name": "search", "arguments": "{broken"}
    with pytest.raises(RolloutError, match=r"answered 500: comparison(, called by steps)?: JSONDecodeError") as failed:
        await servers.rollout(row, mode=mode)
    assert failed.value.kind is FailureKind.ENVIRONMENT
    assert isinstance(failed.value, UnscoredError) == (mode == "Verify"), "only there the tokens are known"
