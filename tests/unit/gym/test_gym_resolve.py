"""spec.gym resolved with NeMo Gym's own parser, and what a user reads when it can't be."""

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from gymtrain_api.spec import Gym
from gymtrain_gym.config import servers
from gymtrain_gym.config.findings import Findings
from gymtrain_gym.config.resolve import TRAINING_MODEL_CONFIG, resolve

pytestmark = pytest.mark.gym

REASONING_GYM = "resources_servers/reasoning_gym/configs/reasoning_gym.yaml"
WORKPLACE = "resources_servers/workplace_assistant/configs/workplace_assistant.yaml"
AGENT = "reasoning_gym_simple_agent"
URL = "http://run-gateway:8000"


def good(config_paths: list[str] | None = None, **gym: Any) -> DictConfig:
    findings = Findings()
    config = resolve(Gym(config_paths=config_paths or [REASONING_GYM], **gym), URL, findings)
    assert findings.items == []
    assert config is not None
    return config


def bad(config_paths: list[str] | None = None, **gym: Any) -> list[str]:
    """The findings as "where: message", those of the server checks included."""
    findings = Findings()
    spec = Gym(config_paths=config_paths or [REASONING_GYM], **gym)
    config = resolve(spec, URL, findings)
    if config is not None:
        servers.describe(config, spec, findings)
    assert findings.items
    return [f"{finding.where}: {finding.message}" for finding in findings.items]


def agent_settings(**settings: Any) -> dict[str, Any]:
    return {AGENT: {"responses_api_agents": {"simple_agent": settings}}}


def test_policy_model_server_is_added() -> None:
    config = good()
    policy = OmegaConf.to_container(config.policy_model.responses_api_models.vllm_model, resolve=True)
    assert isinstance(policy, dict)
    assert policy["base_url"] == "http://run-gateway:8000/v1"
    assert policy["model"] == "policy"


def test_policy_gives_token_ids_and_has_no_reasoning_parser() -> None:
    policy = good([REASONING_GYM, "responses_api_models/vllm_model/configs/vllm_model.yaml"]).policy_model
    assert policy.responses_api_models.vllm_model.return_token_id_information is True
    assert policy.responses_api_models.vllm_model.uses_reasoning_parser is False


def test_reasoning_parser_of_the_user_stays() -> None:
    overrides = {"policy_model": {"responses_api_models": {"vllm_model": {"uses_reasoning_parser": True}}}}
    config = good([REASONING_GYM, TRAINING_MODEL_CONFIG], overrides=overrides)
    assert config.policy_model.responses_api_models.vllm_model.uses_reasoning_parser is True


def test_token_ids_can_not_be_switched_off() -> None:
    overrides = {"policy_model": {"responses_api_models": {"vllm_model": {"return_token_id_information": False}}}}
    config = good([REASONING_GYM, TRAINING_MODEL_CONFIG], overrides=overrides)
    assert config.policy_model.responses_api_models.vllm_model.return_token_id_information is True


def _judge(**more: Any) -> dict[str, Any]:
    """A model server of its own that asks the policy."""
    server = {"entrypoint": "app.py", "base_url": "${policy_base_url}", "api_key": "x", "model": "policy"}
    return {"judge_model": {"responses_api_models": {"vllm_model": {**server, "uses_reasoning_parser": False, **more}}}}


@pytest.mark.parametrize(("said", "found"), [(False, False), (True, True)])
def test_a_judge_of_ones_own_at_the_policy_may_go_without_token_ids(*, said: bool, found: bool) -> None:
    config = good(overrides=_judge(return_token_id_information=said))
    judge = config.judge_model.responses_api_models.vllm_model
    assert judge.base_url == "http://run-gateway:8000/v1"
    assert judge.return_token_id_information is found


def test_equal_specs_resolve_to_equal_configs() -> None:
    assert OmegaConf.to_yaml(good()) == OmegaConf.to_yaml(good())


def test_keys_of_the_command_line_are_left_out() -> None:
    assert not {"config_paths", "disallowed_ports", "uv_cache_dir"} & set(good())


def test_overrides_win_over_the_files() -> None:
    assert good(overrides=agent_settings(max_steps=7))[AGENT].responses_api_agents.simple_agent.max_steps == 7


def test_two_environments_share_one_policy() -> None:
    config = good([REASONING_GYM, WORKPLACE])
    infos = servers.describe(config, Gym(config_paths=["x"]), Findings())
    assert {s.name: s.kind for s in infos} == {
        "reasoning_gym": "resources",
        AGENT: "agent",
        "workplace_assistant": "resources",
        "workplace_assistant_simple_agent": "agent",
        "policy_model": "model",
    }


def test_servers_tell_whom_they_call() -> None:
    infos = servers.describe(good(), Gym(config_paths=["x"]), Findings())
    assert {s.name: s.references for s in infos}[AGENT] == ["policy_model", "reasoning_gym"]


def test_server_that_uses_ray_is_marked() -> None:
    infos = servers.describe(
        good(["resources_servers/swerl_gen/configs/swerl_gen.yaml"]), Gym(config_paths=["x"]), Findings()
    )
    assert [s.name for s in infos if s.needs_ray] == ["swerl_gen_resources_server"]


def test_secrets_stay_unresolved() -> None:
    config = good(overrides={"judge_key": "${oc.env:JUDGE_KEY}"}, env=[{"name": "JUDGE_KEY", "value": "secret"}])
    container = OmegaConf.to_container(config)
    assert isinstance(container, dict)
    assert container["judge_key"] == "${oc.env:JUDGE_KEY}"


def test_variables_with_a_default_need_no_environment() -> None:
    good(overrides={"judge_key": "${oc.env:JUDGE_KEY,none}"})


def test_variables_of_a_pod_template_count() -> None:
    container = {"name": "gym", "env": [{"name": "JUDGE_KEY", "value": "x"}]}
    good(overrides={"key": "${oc.env:JUDGE_KEY}"}, template={"spec": {"containers": [container]}})


def test_missing_variable_names_the_nearest_that_is_there() -> None:
    found = bad(overrides={"key": "${oc.env:JUDGE_KEYY}"}, env=[{"name": "JUDGE_KEY", "value": "x"}])
    assert found == [
        "config key key: needs the environment variable JUDGE_KEYY: add it to spec.gym.env; the nearest is 'JUDGE_KEY'"
    ]


def test_unknown_config_path_names_the_nearest() -> None:
    assert bad(["resources_servers/reasoning_gim/configs/reasoning_gym.yaml"]) == [
        "spec.gym.configPaths[0]: no config file 'resources_servers/reasoning_gim/configs/reasoning_gym.yaml' in the "
        f"Gym image: the nearest is '{REASONING_GYM}'"
    ]


def test_every_unset_value_is_listed() -> None:
    found = bad(overrides=agent_settings(max_steps="???", other="???"))
    path = f"{AGENT}.responses_api_agents.simple_agent"
    assert [line.split(":")[0] for line in found] == [f"config key {path}.max_steps", f"config key {path}.other"]


def test_mapping_can_not_be_replaced_by_a_list() -> None:
    assert bad(overrides={AGENT: [1]}) == [
        f"spec.gym.overrides.{AGENT}: is a mapping in the config files and can't be replaced by a list"
    ]


def test_mapping_can_not_be_replaced_by_a_plain_value() -> None:
    found = bad(overrides={"reasoning_gym": 3})
    assert "is a mapping in the config files and can't be replaced by a plain value (3)" in found[0]


def test_broken_interpolation_is_quoted() -> None:
    assert bad(overrides={"key": "${oc.env:"})[0].startswith("spec.gym.overrides: don't merge over the config files")


def test_interpolation_of_nothing_is_found() -> None:
    assert bad(overrides={"key": "${no.such}"}) == [
        "config key key: does not resolve: Interpolation key 'no.such' not found"
    ]


def test_override_of_an_unknown_server_is_found() -> None:
    found = bad(overrides={"reasoning_gym_simpel_agent": {"responses_api_agents": {"simple_agent": {"max_steps": 1}}}})
    assert found == [
        f"spec.gym.overrides.reasoning_gym_simpel_agent: names no server of the config: the nearest is '{AGENT}'"
    ]


def test_all_references_to_missing_servers_are_found() -> None:
    settings = agent_settings(resources_server={"name": "reasoning_gim"}, model_server={"name": "policymodel"})
    assert bad(overrides=settings) == [
        f"config key {AGENT}.resources_server: refers to resources_servers 'reasoning_gim', which the config lacks: "
        "the nearest is 'reasoning_gym'",
        f"config key {AGENT}.model_server: refers to responses_api_models 'policymodel', which the config lacks: "
        "the nearest is 'policy_model'",
    ]


def test_reference_deep_in_the_settings_is_found() -> None:
    settings = agent_settings(judges=[{"type": "responses_api_models", "name": "jugde"}])
    assert f"config key {AGENT}.judges[0]: refers to responses_api_models 'jugde'" in bad(overrides=settings)[0]


def test_invalid_server_settings_name_the_valid_ones() -> None:
    found = bad(overrides={"reasoning_gym": {"resources_servers": {"reasoning_gym": {"domain": "cookies"}}}})
    assert found[0].startswith("config key reasoning_gym: isn't a valid server: resources_servers -> reasoning_gym -> ")
    assert "Input should be 'math', 'coding'" in found[0]


def test_unknown_server_in_spec_names_the_nearest() -> None:
    found = bad(servers={"reasoning_gim": {}})
    assert found == [
        "spec.gym.servers.reasoning_gim: names no server of the Gym config: the nearest is 'reasoning_gym'"
    ]


def test_head_server_may_have_settings() -> None:
    findings = Findings()
    spec = Gym(config_paths=[REASONING_GYM], servers={"head_server": {"replicas": 1}})
    servers.describe(good(), spec, findings)
    assert not findings


def test_config_without_an_agent_is_refused() -> None:
    found = bad(["resources_servers/reasoning_gym/configs/resources_only.yaml"])
    assert found[0].startswith("spec.gym.configPaths: the config has no agent, only reasoning_gym (resources)")


def test_agent_that_never_calls_the_policy_is_refused() -> None:
    settings = {"entrypoint": "app.py", "openai_base_url": "u", "openai_api_key": "k", "openai_model": "m"}
    judge = {"judge": {"responses_api_models": {"openai_model": settings}}}
    found = bad(overrides={**judge, **agent_settings(model_server={"name": "judge"})})
    assert found[0].startswith(f"config key {AGENT}: never calls the policy (policy_model)")


def test_policy_without_token_ids_is_refused() -> None:
    found = bad([REASONING_GYM, "responses_api_models/openai_model/configs/openai_model.yaml"])
    assert found[0].startswith("config key policy_model: can't be trained: its model server gives no token ids")


def test_server_without_code_names_the_nearest_folder() -> None:
    server = {"extra": {"resources_servers": {"reasoning_gim": {"entrypoint": "app.py", "domain": "math"}}}}
    found = bad(overrides=server)
    assert found[0].startswith("config key extra: no server code in resources_servers/reasoning_gim")
    assert found[0].endswith("the nearest is 'reasoning_gym'")


def test_policys_address_can_not_be_overridden() -> None:
    assert bad(overrides={"policy_base_url": "http://other"})[0].startswith(
        "spec.gym.overrides.policy_base_url: is set"
    )
