"""The gateway in a run: what is made, and who waits for whom."""

import json

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.wiring import RunConfig
from tests.support.world import World, applied


def _gateway_down(world: World) -> None:
    world.servers_ready()
    world.objects["Deployment"]["run-gateway"]["status"] = {}


def test_pods_learn_where_the_gateway_is() -> None:
    world = World().to_servers()
    config = RunConfig.model_validate(json.loads(world.objects["ConfigMap"]["run-run"]["data"]["run.json"]))
    assert config.gateway_url == "http://run-gateway:8000"
    assert config.gateway_pods_host == "run-gateway-pods"


def test_preflight_knows_the_gateway_since_it_resolves_the_config_with_it() -> None:
    world = World()
    world.reconcile()
    config = RunConfig.model_validate(json.loads(world.objects["ConfigMap"]["run-run"]["data"]["run.json"]))
    assert config.gateway_url == "http://run-gateway:8000"


def test_a_run_waits_for_its_gateway_and_says_so() -> None:
    world = World().to_servers()
    _gateway_down(world)
    world.reconcile(5)
    ready = world.condition(ConditionType.GATEWAY_READY)
    assert (ready.status, ready.reason, ready.message) == (
        "False",
        Reason.PODS_STARTING,
        "gateway: waiting for gateway (0/1)",
    )
    assert "waiting for gateway" in world.condition(ConditionType.PROGRESSING).message
    world.servers_ready()
    world.reconcile(5)
    assert world.condition(ConditionType.GATEWAY_READY).status == "True"


def test_a_gateway_that_waits_for_the_first_weights_holds_up_no_trainer() -> None:
    """It is ready only after a sync, so nothing before the sync may wait for it."""
    world = World(startupDeadlineSeconds=60).to_servers()
    assert world.existing("Job") == ["run-trainer-1"]
    _gateway_down(world)
    world.trainer_reports("waiting_for_rollouts", weight_version="run:1:0", transport="HTTPFull")
    world.reconcile(300)
    assert world.condition(ConditionType.FAILED).status == "False", "the attempt has started: its weights are in vLLM"


def test_a_gateway_lost_while_training_is_news() -> None:
    world = World().to_training()
    _gateway_down(world)
    world.reconcile(5)
    assert world.condition(ConditionType.GATEWAY_READY).reason == Reason.PODS_NOT_READY
    assert world.condition(ConditionType.PROGRESSING).reason == Reason.TRAINING


def test_more_gateways_restart_none() -> None:
    world = World().to_training()
    world.change(gateway={"replicas": 3})
    done = world.reconcile(5)
    assert [(s.name, s.replicas) for s in done.scale] == [("run-gateway", 3)]
    assert [name for name in applied(done) if name.startswith(("Deployment", "Pod"))] == []


def test_other_limits_roll_the_gateway_and_nothing_else() -> None:
    world = World().to_training()
    world.change(gateway={"maxInFlight": 8})
    done = world.reconcile(5)
    assert [name for name in applied(done) if name.startswith(("Deployment", "Pod", "Job"))] == [
        "Deployment/run-gateway"
    ]
    strategy = world.objects["Deployment"]["run-gateway"]["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


def test_an_image_of_ones_own_goes_over_the_operators() -> None:
    world = World(gateway={"image": "mine:1"}).to_servers()
    pod = world.objects["Deployment"]["run-gateway"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "mine:1"


def test_the_end_of_a_run_takes_the_gateway_away() -> None:
    world = World().to_training()
    world.trainer_ends(0)
    world.reconcile(5)
    assert "run-gateway" not in world.existing("Deployment")
    assert world.condition(ConditionType.GATEWAY_READY).reason == Reason.FINISHED
