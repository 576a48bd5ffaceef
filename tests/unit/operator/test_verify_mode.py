"""spec.rollout.mode Verify: no agents; the trainer is told what stands in for them."""

import json

from gymtrain_api.conditions import ConditionType
from gymtrain_api.wiring import GymPreflight, RunConfig, VerifyRoute
from tests.support.world import GYM_VERDICT, World

VERIFY = {"mode": "Verify"}


def _config(world: World) -> RunConfig:
    return RunConfig.model_validate(json.loads(world.objects["ConfigMap"]["run-run"]["data"]["run.json"]))


def test_agents_get_no_pods_and_the_other_servers_do() -> None:
    world = World(rollout=VERIFY).to_servers()
    gym = [name for name in world.existing("Deployment") if "-gym-" in name]
    assert gym == ["run-gym-head-server", "run-gym-math", "run-gym-policy-model"]
    assert "run-gym-math-agent" not in world.existing("Service")


def test_the_trainer_learns_which_servers_stand_in_for_an_agent() -> None:
    config = _config(World(rollout=VERIFY).to_servers())
    assert config.agents == {}
    assert config.verifiers == {
        "math_agent": VerifyRoute(
            model_url="http://run-gym-policy-model:8000", resources_url="http://run-gym-math:8000"
        )
    }


def test_with_agents_there_are_no_routes_past_them() -> None:
    config = _config(World().to_servers())
    assert config.verifiers == {}
    assert config.agents == {"math_agent": "http://run-gym-math-agent:8000"}


def test_an_agent_without_a_resources_server_gets_no_route() -> None:
    """Preflight refuses it where a row is for it; others are none of the run's business."""
    bare = {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py"}}}
    gym: GymPreflight = GYM_VERDICT.model_copy(update={"config": GYM_VERDICT.config | {"math_agent": bare}})
    world = World(rollout=VERIFY)
    world.reconcile()
    world.preflight_ends(gym=gym)
    world.reconcile(5)
    assert _config(world).verifiers == {}


def test_readiness_asks_for_no_agents() -> None:
    world = World(rollout=VERIFY).to_servers()
    world.servers_ready()
    world.reconcile(5)
    assert world.condition(ConditionType.GYM_READY).status == "True"
    assert {server.name for server in world.status.servers} == {
        "head_server",
        "policy_model",
        "math",
        "gateway",
        "inference",
    }
