"""What the suite of NeMo Gym's environments gives to a config that lacks values, judges or other config files."""

from typing import Any

import pytest

from tests.environments.placeholders import PLACEHOLDER, Resolved, give, leaves, resolved

pytestmark = pytest.mark.gym

URL = "http://127.0.0.1:8000"


def found(name: str) -> Resolved:
    return resolved([f"resources_servers/{name}/configs/{name}.yaml"], URL)


def model(resolved: Resolved, name: str) -> Any:
    (implementation,) = resolved.config[name]["responses_api_models"].items()
    return implementation


def test_a_model_that_would_need_a_gpu_is_played_by_the_policy() -> None:
    xstest = found("xstest")
    assert xstest.findings == []
    assert xstest.needs == ("model server allenai_wildguard_model_server",)
    implementation, settings = model(xstest, "allenai_wildguard_model_server")
    assert (implementation, settings["base_url"]) == ("vllm_model", f"{URL}/v1")


def test_a_judge_at_an_address_outside_is_played_by_the_policy() -> None:
    science = found("frontierscience_judge")
    assert science.findings == []
    assert science.needs == ("model server judge_model",)
    assert model(science, "judge_model")[1]["base_url"] == f"{URL}/v1"


def test_a_judge_without_an_address_is_played_by_the_policy() -> None:
    proofs = found("imo_proofbench_judge")
    assert proofs.findings == []
    assert proofs.needs == ("model server judge_model",)


def test_the_model_of_an_agent_is_the_policy_under_another_name() -> None:
    compare = found("genrm_compare")
    assert compare.findings == []
    assert model(compare, "policy_model_reasoning_off")[1]["return_token_id_information"] is True


def test_an_environment_that_another_one_calls_comes_with_its_own_config() -> None:
    tools = found("ns_tools")
    assert tools.gym.config_paths[1:] == ["resources_servers/math_with_judge/configs/math_with_judge.yaml"]
    assert not any("which the config lacks" in finding for finding in tools.findings)


def test_placeholders_go_where_the_value_is_missing() -> None:
    overrides: dict[str, Any] = {}
    give(overrides, "judge_base_url", URL)
    give(overrides, "server.resources_servers.x.api_key", URL)
    assert overrides["judge_base_url"] == f"{URL}/v1"
    assert overrides["server"]["resources_servers"]["x"] == {"api_key": PLACEHOLDER}
    assert leaves(overrides) == ["judge_base_url", "server.resources_servers.x.api_key"]
