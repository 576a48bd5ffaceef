"""Sandboxes in the resolved config: what users may leave out, and what they read when something is missing."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig

from gymtrain_api.spec import Gym
from gymtrain_gym.config import code_scan, servers
from gymtrain_gym.config.findings import Findings
from gymtrain_gym.config.resolve import resolve
from gymtrain_gym.datasets.rows import RowReader, responses_schema

pytestmark = pytest.mark.gym

SWE = "responses_api_agents/mini_swe_agent_2/configs/mini_swe_agent_2.yaml"
EXAMPLE = Path(__file__).parents[3] / "examples" / "swe"
OPENSANDBOX = "nemo_gym/sandbox/providers/opensandbox/configs/opensandbox.yaml"


def resolved(
    *, has_sandboxes: bool = True, root: bool = True, paths: list[str] | None = None, **overrides: Any
) -> tuple[DictConfig | None, list[str]]:
    findings = Findings()
    env = [{"name": "OPENSANDBOX_API_KEY", "value": "x"}]
    gym = Gym(config_paths=paths or [SWE], overrides=overrides, env=env)
    config = resolve(
        gym, "http://run-gateway:8000", findings, has_sandboxes=has_sandboxes, root_sandboxes=root and has_sandboxes
    )
    return config, [f"{finding.where}: {finding.message}" for finding in findings.items]


def agent(**settings: Any) -> dict[str, Any]:
    return {"mini_swe_agent_2": {"responses_api_agents": {"mini_swe_agent_2": settings}}}


def test_a_config_without_a_sandbox_block_gets_the_runs_sandboxes() -> None:
    config, found = resolved()
    assert found == []
    assert config is not None
    assert config.sandbox == {"gymtrain": {}}


def test_a_block_of_the_user_stays() -> None:
    config, found = resolved(sandbox={"gymtrain": {"route": "broker"}})
    assert found == []
    assert config is not None
    assert config.sandbox == {"gymtrain": {"route": "broker"}}


def test_another_provider_needs_no_sandboxes_of_the_run() -> None:
    config, found = resolved(has_sandboxes=False, paths=[SWE, OPENSANDBOX])
    assert found == []
    assert config is not None
    assert "gymtrain" not in config.sandbox


@pytest.mark.parametrize("overrides", [{}, {"sandbox": {"gymtrain": {}}}, agent(sandbox_provider={"gymtrain": {}})])
def test_a_run_without_sandboxes_is_told_to_add_them(overrides: dict[str, Any]) -> None:
    _, found = resolved(has_sandboxes=False, **overrides)
    assert "needs sandboxes of this run: add spec.sandboxes ({} is enough)" in found[0]


def test_a_config_without_agents_in_sandboxes_is_left_alone() -> None:
    config, found = resolved(has_sandboxes=False, paths=["resources_servers/reasoning_gym/configs/reasoning_gym.yaml"])
    assert found == []
    assert config is not None
    assert "sandbox" not in config


def test_an_unknown_block_names_the_nearest() -> None:
    _, found = resolved(**agent(sandbox_provider="sandbux"), sandbox={"gymtrain": {}})
    assert found == [
        "config key mini_swe_agent_2.sandbox_provider: names the sandbox 'sandbux', which the config lacks: "
        "the nearest is 'sandbox'"
    ]


def test_a_block_with_two_providers_is_refused() -> None:
    _, found = resolved(sandbox={"gymtrain": {}, "docker": {}})
    assert found[0].startswith("config key sandbox: isn't a sandbox: expected one provider and its settings")


def test_an_agent_that_wants_root_is_told_when_sandboxes_are_not() -> None:
    _, found = resolved(root=False)
    assert found == [
        "config key mini_swe_agent_2.responses_api_agents.mini_swe_agent_2.sandbox_environment_kwargs.user: is root, "
        "but the run's sandboxes are not: "
        'set it to "65532", their user, in spec.gym.overrides (kubectl drops a null), or '
        "spec.sandboxes.root to true"
    ]


def test_an_agent_with_the_images_user_runs_without_root() -> None:
    assert resolved(root=False, **agent(sandbox_environment_kwargs={"user": "65532"}))[1] == []


def test_the_swe_example_passes_preflight() -> None:
    example = yaml.safe_load((EXAMPLE / "swe.yaml").read_text())["spec"]
    findings, gym = Findings(), Gym.model_validate(example["gym"])
    config = resolve(gym, "http://run-gateway:8000", findings, has_sandboxes=True)
    assert config is not None, findings.items
    infos = servers.describe(config, gym, findings)
    assert findings.items == []
    assert {info.name: info.needs_ray for info in infos} == {"mini_swe_agent_2": False, "policy_model": False}
    reader = RowReader({"mini_swe_agent_2"}, "mini_swe_agent_2", responses_schema())
    for number, line in enumerate((EXAMPLE / "tasks.jsonl").read_bytes().splitlines(), 1):
        assert reader.agent_of(line, number) == "mini_swe_agent_2"


def test_an_agent_that_the_gym_image_lacks_packages_for_is_told_which_image_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code_scan, "_installed", lambda module, roots: module != "minisweagent")
    config, _ = resolved()
    assert config is not None
    findings = Findings()
    servers.describe(config, Gym(config_paths=[SWE]), findings)
    assert [f"{finding.where}: {finding.message}" for finding in findings.items] == [
        "config key mini_swe_agent_2: needs the Python packages minisweagent, which the Gym image lacks: "
        "name the image gym-swe, which has them, in spec.gym.image"
    ]


def test_packages_that_no_image_has_ask_for_one_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_scan, "_installed", lambda module, roots: module not in ("minisweagent", "yaml"))
    config, _ = resolved()
    assert config is not None
    findings = Findings()
    servers.describe(config, Gym(config_paths=[SWE]), findings)
    assert findings.items[0].message.endswith(
        "minisweagent, yaml, which the Gym image lacks: build an image with what responses_api_agents/mini_swe_agent_2 "
        "lists and name it in spec.gym.image or spec.gym.servers.mini_swe_agent_2.image"
    )
