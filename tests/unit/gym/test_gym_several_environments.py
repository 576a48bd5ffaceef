"""One run with two environments, as verl's recipe blends math and workplace_assistant.

Preflight finds the rows of each, and each environment's own servers score them, unmodified and side by side.
"""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gymtrain_api.wiring import GymPreflight, RunConfig
from gymtrain_gym import preflight
from gymtrain_gym.datasets.preparation import Folders
from gymtrain_gym.server import workspace
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.rollouts.client import AgentSource
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from tests.support.fake_policy import FakePolicy, Message
from tests.support.gym_cluster import GymCluster

pytestmark = pytest.mark.gym

MATH, WORKPLACE = "math_with_judge", "workplace_assistant"
CONFIGS = [f"resources_servers/{name}/configs/{name}.yaml" for name in (MATH, WORKPLACE)]
EXAMPLES = [{"fromGym": {"types": ["example"]}}]
LIMITS = RolloutLimits(max_concurrent=4, timeout_seconds=60.0, max_attempts=1, verify_timeout_seconds=60.0)
SAMPLING = Sampling(temperature=1.0, max_output_tokens=512)


def example_rows(name: str) -> list[dict[str, Any]]:
    file = workspace.find(Path(f"resources_servers/{name}/data/example.jsonl"), workspace.roots())
    assert file is not None
    return [json.loads(line) for line in file.read_text().splitlines()]


class Scripted(FakePolicy):
    """Solves the first example of both environments, or answers both with what is wrong in each."""

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.solves = True
        (self._call,) = example_rows(WORKPLACE)[0]["ground_truth"]
        self._answer = example_rows(MATH)[0]["expected_answer"]

    def _reply(self, messages: list[Message]) -> Message:
        if not self.solves:
            return {"content": "\\boxed{1}"}
        if self.requests[-1].get("tools") and messages[-1]["role"] == "user":
            return {"content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": self._call}]}
        return {"content": f"\\boxed{{{self._answer}}}"}


@pytest.fixture
def verdict(make_run: Callable[..., RunConfig], tmp_path: Path) -> GymPreflight:
    return preflight.check(make_run(EXAMPLES, CONFIGS), Folders(sources=tmp_path / "sources", data=tmp_path / "data"))


def test_each_environment_brings_its_rows_and_its_agent(verdict: GymPreflight) -> None:
    assert verdict.findings == []
    assert {file.default_agent: file.rows for file in verdict.data.train} == {
        f"{MATH}_simple_agent": len(example_rows(MATH)),
        f"{WORKPLACE}_simple_agent": len(example_rows(WORKPLACE)),
    }
    assert {server.name for server in verdict.servers if server.kind == "resources"} == {MATH, WORKPLACE}
    assert [server.name for server in verdict.servers if server.kind == "model"] == ["policy_model"]


@pytest_asyncio.fixture
async def servers(verdict: GymPreflight, tmp_path: Path) -> AsyncIterator[tuple[GymCluster, Scripted]]:
    policy = Scripted()
    await policy.start()
    cluster = GymCluster(tmp_path, {**verdict.config, "policy_base_url": policy.base_url})
    names = [server.name for server in verdict.servers]
    try:
        cluster.start(*names)
        await cluster.ready(*names, seconds=800)
        yield cluster, policy
    finally:
        cluster.stop()
        await policy.stop()


async def test_rows_of_both_are_scored_by_their_own_environment(servers: tuple[GymCluster, Scripted]) -> None:
    cluster, policy = servers
    tasks = [
        Task(number, agent, cluster.url(agent, ""), example_rows(name)[0])
        for number, name in enumerate((MATH, WORKPLACE))
        for agent in [f"{name}_simple_agent"]
    ]
    async with AgentSource(LIMITS, SAMPLING) as source:
        solved = [(await source.run(task)).reward for task in tasks]
        policy.solves = False
        failed = [(await source.run(task)).reward for task in tasks]
    assert solved == [1.0, 1.0]
    assert failed == [0.0, 0.0]
