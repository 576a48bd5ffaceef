"""Mode Verify: which agents can be done without."""

from typing import Any

import pytest

from gymtrain_api.wiring import DataFile, DataIndex, GymServerInfo
from gymtrain_gym.config import servers as gym_servers
from gymtrain_gym.config.findings import Findings

pytestmark = pytest.mark.gym

MODEL = {"type": "responses_api_models", "name": "policy_model"}
RESOURCES = {"type": "resources_servers", "name": "math"}


def _problems(rows_for: str = "agent", math_calls: tuple[str, ...] = (), **settings: Any) -> list[str]:
    config = {
        "agent": {"responses_api_agents": {"simple_agent": settings}},
        "spare": {"responses_api_agents": {"simple_agent": {"model_server": MODEL, "resources_server": RESOURCES}}},
    }
    servers = [
        GymServerInfo(name="policy_model", kind="model", implementation="vllm_model"),
        GymServerInfo(name="math", kind="resources", implementation="math", references=list(math_calls)),
        GymServerInfo(name="agent", kind="agent", implementation="simple_agent"),
        GymServerInfo(name="spare", kind="agent", implementation="simple_agent"),
    ]
    index = DataIndex(train=[DataFile(file="a", offsets_file="b", rows=1, weight=1, agents={rows_for: 1})])
    findings = Findings()
    gym_servers.check_mode_verify(config, servers, index, findings)
    return [f"{finding.where}: {finding.message}" for finding in findings.items]


def test_an_agent_with_both_servers_can_be_stood_in_for() -> None:
    assert _problems(model_server=MODEL, resources_server=RESOURCES) == []


@pytest.mark.parametrize("lacking", ["model_server", "resources_server"])
def test_an_agent_that_lacks_a_server_needs_mode_agent(lacking: str) -> None:
    settings: dict[str, Any] = {"model_server": MODEL, "resources_server": RESOURCES}
    del settings[lacking]
    (problem,) = _problems(**settings)
    assert problem == (
        f"config key agent: has no {lacking}, which spec.rollout.mode Verify calls instead of the agent: "
        "use mode Agent for this agent"
    )


def test_an_agent_that_no_row_is_for_may_lack_them() -> None:
    assert _problems(rows_for="spare") == []


def test_a_reference_to_another_kind_of_server_is_named() -> None:
    (problem,) = _problems(model_server=RESOURCES, resources_server=RESOURCES)
    assert problem.startswith("config key agent.model_server: 'math' is no model server of the config")


def test_a_server_that_calls_an_agent_needs_it() -> None:
    (problem,) = _problems(model_server=MODEL, resources_server=RESOURCES, math_calls=("spare",))
    assert problem.startswith("config key math: calls the agent spare")
