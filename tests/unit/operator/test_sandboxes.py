"""Sandboxes in a run: what is made, who waits for the broker, and what is swept when the run stops."""

import json
from typing import Any

import pytest

from gymtrain_api import labels, names
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.labels import Role
from gymtrain_api.runs import parse_spec
from gymtrain_api.wiring import RunConfig
from gymtrain_operator.manifests.broker import broker_objects
from gymtrain_operator.manifests.context import Defaults, RunContext
from tests.support.world import UID, World, applied, deleted, spec

BROKER = names.broker_identity("run", UID)
IDENTITY = ("Secret/run-broker", "ServiceAccount/run-broker", "Role/run-broker-", "RoleBinding/run-broker-")


def _world(**sandboxes: Any) -> World:
    return World(sandboxes=sandboxes)


def _pod(world: World, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = world.objects["Deployment"][name]["spec"]["template"]["spec"]
    return spec


def _volumes(pod: dict[str, Any]) -> set[str]:
    return {volume["name"] for volume in pod["volumes"]}


def test_a_run_without_sandboxes_has_no_broker_and_no_condition_about_one() -> None:
    world = World().to_training()
    assert "run-broker" not in world.objects["Deployment"]
    assert "ServiceAccount" not in world.objects
    assert not [name for name in world.objects["Secret"] if "broker" in name]
    assert all(c.type != ConditionType.SANDBOXES_READY for c in world.status.conditions)


def test_the_broker_and_its_clients_share_a_token_that_only_a_secret_holds() -> None:
    world = _world().to_servers()
    for name in ("run-broker", "run-gym-math-agent", "run-gym-math"):
        (volume,) = (v for v in _pod(world, name)["volumes"] if v["name"] == "broker-token")
        assert volume["secret"]["secretName"] == BROKER
    job = world.job["spec"]["template"]["spec"]
    assert "broker-token" in _volumes(job)
    assert world.objects["Secret"][BROKER]["stringData"] == {"token": ""}, "chance is no part of a plan"


def test_vllm_the_gateway_and_model_servers_get_no_broker_token() -> None:
    world = _world().to_servers()
    for name in ("run-inference", "run-gateway", "run-gym-policy-model", "run-gym-head-server"):
        assert "broker-token" not in _volumes(_pod(world, name))


def test_only_the_broker_can_talk_to_the_api_server() -> None:
    world = _world().to_servers()
    for name in world.existing("Deployment"):
        pod = _pod(world, name)
        assert pod["automountServiceAccountToken"] is False
        assert ("identity" in _volumes(pod)) is (name == "run-broker")


def test_the_broker_has_rights_on_pods_of_its_namespace_and_no_others() -> None:
    world = _world().to_servers()
    ((role, content),) = world.objects["Role"].items()
    (rule,) = content["rules"]
    assert rule["resources"] == ["pods"]
    (binding,) = world.objects["RoleBinding"].values()
    assert binding["roleRef"]["name"] == role
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": BROKER, "namespace": "ns"}]


def test_the_identity_is_written_before_the_broker_and_not_again() -> None:
    world = _world()
    world.reconcile()
    world.preflight_ends()
    written = applied(world.reconcile(5))
    identity = [name for name in written if name.startswith(IDENTITY)]
    assert len(identity) == len(IDENTITY)
    assert all(written.index(name) < written.index("Deployment/run-broker") for name in identity)
    world.now += 700
    assert not [name for name in applied(world.plan(resync=True)) if name.startswith(IDENTITY)]


@pytest.mark.parametrize(
    ("defaults", "told"),
    [
        (Defaults(), set()),
        (Defaults(user_namespaces=True), {"GYMTRAIN_USER_NAMESPACES"}),
        (Defaults(image_volumes=True), {"GYMTRAIN_IMAGE_VOLUMES"}),
    ],
)
def test_the_broker_learns_what_the_cluster_has(defaults: Defaults, told: set[str]) -> None:
    run = RunContext("run", "ns", "uid", parse_spec(spec(sandboxes={"root": True})), defaults)
    deployment = next(one for one in broker_objects(run) if one["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {one["name"] for one in container["env"] if one.get("value") == "1"} == told


def test_the_broker_learns_what_a_sandbox_may_ask_for() -> None:
    run = RunContext("run", "ns", "uid", parse_spec(spec(sandboxes={})), Defaults(sandbox_max_resources="cpu=8"))
    deployment = next(one for one in broker_objects(run) if one["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "GYMTRAIN_SANDBOX_MAX_RESOURCES", "value": "cpu=8"} in container["env"]


def test_pods_learn_where_the_broker_is() -> None:
    world = _world().to_servers()
    config = RunConfig.model_validate(json.loads(world.objects["ConfigMap"]["run-run"]["data"]["run.json"]))
    assert config.broker_url == "http://run-broker:8000"


def test_a_run_waits_for_its_broker_and_says_so() -> None:
    world = _world().to_servers()
    world.servers_ready()
    world.objects["Deployment"]["run-broker"]["status"] = {}
    world.reconcile(5)
    ready = world.condition(ConditionType.SANDBOXES_READY)
    assert ready.status == "False"
    assert ready.message.startswith("sandbox broker: waiting for broker (0/1)")
    assert "waiting for broker" in world.condition(ConditionType.PROGRESSING).message
    assert any(server.kind == "broker" for server in world.status.servers)


def test_other_sandbox_settings_replace_the_broker_and_nothing_else() -> None:
    world = _world().to_training()
    world.change(sandboxes={"maxConcurrent": 7})
    written = [name for name in applied(world.reconcile(5)) if name.startswith(("Deployment", "Pod", "Job"))]
    assert written == ["Deployment/run-broker"]


def test_the_end_sweeps_what_the_broker_left_until_the_broker_is_gone() -> None:
    world = _world().to_training()
    world.trainer_ends(0)
    world.reconcile(5)
    assert world.condition(ConditionType.SANDBOXES_READY).reason == Reason.FINISHED
    assert world.last is not None
    assert world.last.requeue_after == 1.0
    world.add_pod("run-broker-abc", Role.BROKER, {"phase": "Running"})
    world.add_pod("run-sb-1", Role.SANDBOX, {"phase": "Running"})
    done = world.reconcile(1)
    assert deleted(done) == ["Pod/run-sb-1"]
    world.add_pod("run-sb-2", Role.SANDBOX, {"phase": "Pending"})
    done = world.reconcile(2)
    assert deleted(done) == ["Pod/run-sb-2"], "the dying broker had made one more"
    assert done.requeue_after == 2.0
    del world.objects["Pod"]["run-broker-abc"]
    assert world.reconcile(2).requeue_after is None


def test_a_suspended_run_keeps_no_sandbox() -> None:
    world = _world().to_training()
    world.add_pod("run-sb-1", Role.SANDBOX, {"phase": "Running"})
    world.change(suspend=True)
    assert "Pod/run-sb-1" in deleted(world.reconcile(5))
    assert world.condition(ConditionType.SANDBOXES_READY).reason == Reason.SUSPENDED


def test_sandboxes_are_told_from_what_the_operator_watches() -> None:
    assert labels.BROKER_VALUE != labels.MANAGED_BY_VALUE
