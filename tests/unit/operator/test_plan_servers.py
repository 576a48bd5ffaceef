"""Servers: what is made, when pods are replaced, and what the conditions say of them."""

import json

import pytest

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.transports import ServerOffer
from tests.support.world import OFFER, World, applied, deleted


def test_servers_and_trainer_are_made_together_when_preflight_has_passed() -> None:
    world = World().to_servers()
    assert world.existing("Deployment") == [
        "run-gateway",
        "run-gym-head-server",
        "run-gym-math",
        "run-gym-math-agent",
        "run-gym-policy-model",
        "run-inference",
    ]
    assert world.existing("Service") == [
        "run-gateway",
        "run-gateway-pods",
        "run-gym-head-server",
        "run-gym-math",
        "run-gym-math-agent",
        "run-gym-policy-model",
        "run-inference",
        "run-inference-pods",
        "run-trainer",
    ]
    assert world.existing("Job") == ["run-trainer-1"]


def test_config_maps_are_written_before_the_pods_that_mount_them() -> None:
    world = World()
    world.reconcile()
    world.preflight_ends()
    order = [name.split("/")[0] for name in applied(world.reconcile())]
    assert order.index("ConfigMap") < order.index("Deployment") < order.index("Job")


def test_nothing_is_written_twice() -> None:
    world = World().to_servers()
    done = world.reconcile(5)
    assert (applied(done), deleted(done), done.scale) == ([], [], ())


def test_a_lost_service_is_made_again() -> None:
    world = World().to_servers()
    del world.objects["Service"]["run-inference"]
    assert applied(world.reconcile()) == ["Service/run-inference"]


def test_a_resync_writes_what_others_may_have_changed_but_no_pod_templates() -> None:
    world = World().to_servers()
    kinds = {name.split("/")[0] for name in applied(world.plan(resync=True))}
    assert kinds == {"ConfigMap", "Service", "NetworkPolicy"}


def test_a_resync_leaves_alone_what_is_as_the_operator_wrote_it() -> None:
    world = World().to_servers()
    service = world.objects["Service"]["run-inference"]["metadata"]["uid"]
    written = applied(world.plan(resync=True, untouched=frozenset({service})))
    assert "Service/run-inference" not in written
    assert "NetworkPolicy/run-training" in written


def test_more_replicas_change_nothing_but_the_number() -> None:
    world = World().to_training()
    world.change(inference={"replicas": 3}, gym={**world.spec["gym"], "servers": {"math": {"replicas": 2}}})
    done = world.reconcile(5)
    assert [(s.name, s.replicas) for s in done.scale] == [("run-inference", 3), ("run-gym-math", 2)]
    assert [name for name in applied(done) if name.startswith(("Deployment", "Job"))] == []


def test_another_release_of_the_operator_restarts_no_server() -> None:
    """Its templates differ, the inputs do not."""
    world = World().to_training()
    for deployment in world.objects["Deployment"].values():
        deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "older:0"
    assert [name for name in applied(world.plan(resync=True)) if name.startswith("Deployment")] == []


def _edited(world: World, field: str, **more: str) -> None:
    """Somebody writes to a Deployment; the API server notes which field."""
    entry = {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {"f:spec": {field: {}}}, **more}
    ours = {"manager": labels.FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {"f:template": {}}}}
    world.objects["Deployment"]["run-gym-math"]["metadata"]["managedFields"] = [ours, entry]


def test_a_deployment_edited_by_hand_is_put_right_at_the_next_resync() -> None:
    world = World().to_training()
    _edited(world, "f:template")
    assert applied(world.plan()) == []
    assert [name for name in applied(world.plan(resync=True)) if name.startswith("Deployment")] == [
        "Deployment/run-gym-math"
    ]


def test_controllers_that_write_their_own_fields_are_no_editors() -> None:
    world = World().to_training()
    _edited(world, "f:replicas")
    assert "Deployment/run-gym-math" not in applied(world.plan(resync=True))
    _edited(world, "f:template", subresource="status")
    assert "Deployment/run-gym-math" not in applied(world.plan(resync=True))


def test_spelling_a_default_out_is_no_change() -> None:
    """So a field that a later release adds, with a default, restarts nothing either."""
    world = World().to_training()
    world.change(inference={"replicas": 1, "gpus": 0, "args": []}, gym={**world.spec["gym"], "servers": {"math": {}}})
    assert [name for name in applied(world.plan()) if name.startswith(("Deployment", "Pod"))] == []


def test_new_resources_replace_the_pods_of_that_server_only() -> None:
    world = World().to_training()
    servers = {"math": {"resources": {"requests": {"cpu": "1"}}}}
    world.change(gym={**world.spec["gym"], "servers": servers})
    done = world.reconcile(5)
    assert [name for name in applied(done) if name.startswith("Deployment")] == ["Deployment/run-gym-math"]
    pod = world.objects["Deployment"]["run-gym-math"]["spec"]["template"]
    assert (
        pod["metadata"]["annotations"][labels.CONFIG_HASH]
        == done.apply[-1]["metadata"]["annotations"][labels.CONFIG_HASH]
    )


def test_a_deployment_on_its_way_out_is_waited_for() -> None:
    world = World().to_servers()
    world.objects["Deployment"]["run-inference"]["metadata"]["deletionTimestamp"] = "2027-01-01T00:00:00Z"
    world.change(inference={"replicas": 2, "resources": {"requests": {"cpu": "1"}}})
    done = world.reconcile()
    assert "Deployment/run-inference" not in applied(done)
    assert done.scale == ()


def test_readiness_counts_pods_and_names_who_is_missing() -> None:
    world = World().to_servers()
    world.servers_ready()
    world.objects["Deployment"]["run-gym-math"]["status"] = {}
    world.reconcile(5)
    gym = world.condition(ConditionType.GYM_READY)
    assert (gym.status, gym.reason) == ("False", Reason.PODS_STARTING)
    assert gym.message == "Gym servers: waiting for math (0/1)"
    assert {s.name: s.ready for s in world.status.servers} == {
        "head_server": "1/1",
        "policy_model": "1/1",
        "math": "0/1",
        "math_agent": "1/1",
        "gateway": "1/1",
        "inference": "1/1",
    }


def test_a_server_that_can_not_start_says_why() -> None:
    world = World().to_servers()
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    last = {"terminated": {"exitCode": 78, "reason": "Error"}}
    status = {
        "phase": "Running",
        "containerStatuses": [{"name": "gym", "state": {"waiting": waiting}, "lastState": last}],
    }
    world.add_pod("run-gym-math-x", labels.Role.GYM, status, **{labels.SERVER: "math"})
    world.reconcile(5)
    message = world.condition(ConditionType.GYM_READY).message
    assert "pod run-gym-math-x, container gym: CrashLoopBackOff" in message
    assert "exit code 78" in message


def test_pods_that_can_not_be_made_are_no_mystery() -> None:
    world = World().to_servers()
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: compute"}
    world.objects["Deployment"]["run-inference"]["status"] = {"conditions": [failure]}
    world.reconcile(5)
    assert "no pod can be made: exceeded quota" in world.condition(ConditionType.INFERENCE_READY).message


def test_vllm_that_waits_for_weights_is_told_from_vllm_that_loads() -> None:
    world = World().to_servers()
    started = {
        "phase": "Running",
        "containerStatuses": [{"name": "inference", "started": True, "state": {"running": {}}}],
    }
    world.add_pod("run-inference-x", labels.Role.INFERENCE, started)
    world.reconcile(5)
    assert "1 of 1 vLLM pods are up and wait for the trainer's first weights" in (
        world.condition(ConditionType.INFERENCE_READY).message
    )


def _on_node(world: World, name: str, role: labels.Role, node: str, **more: str) -> None:
    world.add_pod(name, role, {"phase": "Pending"}, **more)
    world.objects["Pod"][name]["spec"] = {"nodeName": node}


@pytest.mark.parametrize(
    ("modes", "node", "told"),
    [(["ReadWriteOnce"], "b", True), (["ReadWriteOnce"], "a", False), (["ReadWriteMany"], "b", False)],
)
def test_vllm_that_can_not_have_the_trainers_volume_says_so(modes: list[str], node: str, told: bool) -> None:
    model = {"source": "hf://org/model", "lora": {"r": 8}}
    world = World(model=model, trainer={"checkpoint": {"size": "1Gi", "accessModes": modes}}).to_servers()
    _on_node(world, "run-trainer-1-0-x", labels.Role.TRAINER, "a", **{labels.ATTEMPT: "1"})
    _on_node(world, "run-inference-x", labels.Role.INFERENCE, node)
    world.reconcile(5)
    message = world.condition(ConditionType.INFERENCE_READY).message
    assert ("spec.trainer.checkpoint.accessModes: [ReadWriteMany]" in message) is told


def test_a_server_lost_after_it_was_ready_is_another_reason_than_a_starting_one() -> None:
    world = World().to_training()
    world.objects["Deployment"]["run-gym-math"]["status"] = {}
    world.reconcile(5)
    assert world.condition(ConditionType.GYM_READY).reason == Reason.PODS_NOT_READY
    assert world.condition(ConditionType.PROGRESSING).reason == Reason.TRAINING, "the trainer says what it waits for"
    world.servers_ready()
    world.reconcile(5)
    assert world.condition(ConditionType.GYM_READY).status == "True"


def test_the_transport_is_chosen_once() -> None:
    world = World().to_servers()
    world.seen["offers"] = (OFFER,)
    world.reconcile(5)
    assert world.status.weight_sync is not None
    assert world.status.weight_sync.transport == "HTTPFull"
    world.seen["offers"] = (ServerOffer(frozenset(), None),)
    world.reconcile(5)
    assert world.condition(ConditionType.WEIGHT_SYNC_READY).status == "True"


def test_servers_without_any_transport_end_the_run_with_what_they_lack() -> None:
    world = World().to_servers()
    done = world.reconcile(5, offers=(ServerOffer(frozenset(), None),))
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == Reason.TRANSPORT_UNAVAILABLE
    assert "VLLM_SERVER_DEV_MODE=1" in failed.message
    assert "Deployment/run-inference" in deleted(done)
    assert "Job/run-trainer-1" in deleted(done)


def test_the_version_is_the_trainers_last_word() -> None:
    world = World().to_training(step=3)
    world.trainer_ends(0, json.dumps({"phase": "complete", "step": 10, "weight_version": "run:1:11"}))
    world.reconcile(5)
    assert world.status.weight_sync is not None
    assert world.status.weight_sync.version == "run:1:11"


@pytest.mark.parametrize(
    "kind", ["NetworkPolicy", "ConfigMap", "Service", "Deployment", "Job", "Pod", "PersistentVolumeClaim"]
)
def test_all_objects_belong_to_the_run_and_say_so(kind: str) -> None:
    # A kept volume is nobody's: test_kept_volumes.py.
    world = World(trainer={"checkpoint": {"size": "1Gi", "retain": "Delete"}}).to_servers()
    for manifest in world.objects[kind].values():
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert owner["controller"] is True
        assert owner["blockOwnerDeletion"] is False
        assert manifest["metadata"]["labels"][labels.RUN] == "run"
        assert manifest["metadata"]["labels"][labels.MANAGED_BY] == labels.MANAGED_BY_VALUE
