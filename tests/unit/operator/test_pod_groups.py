"""vLLM servers that span several pods: a LeaderWorkerSet in place of the Deployment."""

from typing import Any

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType
from gymtrain_operator.manifests.objects import config_hash
from tests.support.world import World, applied, deleted

GROUPS = "LeaderWorkerSet/run-vllm"


def two_nodes(**inference: Any) -> World:
    return World(inference={"nodes": 2, "replicas": 2, "gpus": 8, **inference}, trainer={"gpus": 1})


def groups(world: World) -> dict[str, Any]:
    return world.objects["LeaderWorkerSet"]["run-vllm"]


def pod_templates(world: World) -> list[dict[str, Any]]:
    found = groups(world)["spec"]["leaderWorkerTemplate"]
    return [found["leaderTemplate"], found["workerTemplate"]]


def matches(selector: dict[str, str], pod: dict[str, Any]) -> bool:
    found: dict[str, str] = pod["metadata"]["labels"]
    return selector.items() <= found.items()


def leader_status(**more: Any) -> dict[str, Any]:
    return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], **more}


def test_a_server_of_several_nodes_is_a_group_and_no_deployment() -> None:
    world = two_nodes().to_servers()
    assert "run-inference" not in world.existing("Deployment")
    spec = groups(world)["spec"]
    assert (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) == (2, 2)


def test_a_server_of_one_node_is_a_deployment_and_no_group() -> None:
    world = World().to_servers()
    assert "run-inference" in world.existing("Deployment")
    assert world.existing("LeaderWorkerSet") == []


def test_services_select_leaders_alone() -> None:
    world = two_nodes().to_servers()
    leader, worker = pod_templates(world)
    for name in ("run-inference", "run-inference-pods"):
        selector = world.objects["Service"][name]["spec"]["selector"]
        assert matches(selector, leader)
        assert not matches(selector, worker)


def test_only_a_leader_is_probed_and_has_a_port() -> None:
    leader, worker = (one["spec"]["containers"][0] for one in pod_templates(two_nodes().to_servers()))
    server = {"ports", "startupProbe", "readinessProbe", "livenessProbe"}
    assert server <= leader.keys()
    assert not server & worker.keys()
    of_routes = {"GYMTRAIN_RUN_TOKEN_FILE", "run-token"}
    for key in ("env", "volumeMounts"):
        assert {one["name"] for one in leader[key]} - {one["name"] for one in worker[key]} <= of_routes
        leader[key] = [one for one in leader[key] if one["name"] not in of_routes]
    assert {key: leader[key] for key in worker} == worker


def test_the_users_template_holds_for_all_pods_of_a_group() -> None:
    world = two_nodes(template={"spec": {"nodeSelector": {"gpu": "h100"}}}).to_servers()
    assert [one["spec"]["nodeSelector"] for one in pod_templates(world)] == [{"gpu": "h100"}] * 2


def test_vllm_is_ready_with_the_leaders() -> None:
    world = two_nodes().to_servers()
    world.add_pod("run-vllm-0", labels.Role.INFERENCE, leader_status())
    world.add_pod("run-vllm-0-1", labels.Role.INFERENCE_WORKER, leader_status())
    world.reconcile()
    assert world.condition(ConditionType.INFERENCE_READY).status == "False"
    assert next(server.ready for server in world.status.servers or [] if server.kind == "inference") == "1/2"
    world.add_pod("run-vllm-1", labels.Role.INFERENCE, leader_status())
    world.reconcile()
    assert world.condition(ConditionType.INFERENCE_READY).status == "True"


def test_a_worker_without_a_node_is_named() -> None:
    world = two_nodes().to_servers()
    waiting = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    world.add_pod("run-vllm-0", labels.Role.INFERENCE, {"phase": "Running"})
    world.add_pod("run-vllm-0-1", labels.Role.INFERENCE_WORKER, {"phase": "Pending", "conditions": [waiting]})
    world.reconcile()
    assert "pod run-vllm-0-1 can't be scheduled" in world.condition(ConditionType.INFERENCE_READY).message


def test_what_ended_a_group_is_told_while_it_goes() -> None:
    world = two_nodes().to_servers()
    ended = {"terminated": {"exitCode": 1, "message": "no memory left on the GPU"}}
    status = {"phase": "Running", "containerStatuses": [{"name": "inference", "restartCount": 1, "lastState": ended}]}
    world.add_pod("run-vllm-0-1", labels.Role.INFERENCE_WORKER, status)
    world.objects["Pod"]["run-vllm-0-1"]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    world.reconcile()
    message = world.condition(ConditionType.INFERENCE_READY).message
    assert "run-vllm-0-1, container inference ended with exit code 1: no memory left on the GPU" in message


def test_a_controller_that_does_nothing_is_told() -> None:
    world = two_nodes().to_servers()
    world.reconcile(30)
    assert "controller" not in world.condition(ConditionType.INFERENCE_READY).message
    world.reconcile(60)
    assert "is LWS's controller running" in world.condition(ConditionType.INFERENCE_READY).message
    groups(world)["status"] = {"replicas": 2}
    world.reconcile()
    assert "controller" not in world.condition(ConditionType.INFERENCE_READY).message


def test_another_number_of_servers_only_scales() -> None:
    world = two_nodes().to_training()
    before = config_hash(groups(world))
    world.change(inference={"nodes": 2, "replicas": 3, "gpus": 8})
    done = world.reconcile()
    assert [(one.kind, one.name, one.replicas) for one in done.scale] == [("LeaderWorkerSet", "run-vllm", 3)]
    assert GROUPS not in applied(done)
    assert config_hash(groups(world)) == before


def test_another_template_is_written_once() -> None:
    world = two_nodes().to_training()
    world.change(inference={"nodes": 2, "replicas": 2, "gpus": 8, "template": {"spec": {"priorityClassName": "high"}}})
    assert GROUPS in applied(world.reconcile())
    assert GROUPS not in applied(world.reconcile())


def test_a_template_that_someone_else_changed_is_written_again_at_a_resync() -> None:
    world = two_nodes().to_training()
    assert GROUPS not in applied(world.reconcile(resync=True))
    theirs = {"manager": "kubectl-edit", "fieldsV1": {"f:spec": {"f:leaderWorkerTemplate": {"f:workerTemplate": {}}}}}
    groups(world)["metadata"]["managedFields"] = [theirs]
    assert GROUPS in applied(world.reconcile(resync=True))


def test_a_suspended_run_has_no_groups() -> None:
    world = two_nodes().to_training()
    world.spec["suspend"] = True
    world.change()
    assert GROUPS in deleted(world.reconcile())


def test_an_ended_run_has_no_groups() -> None:
    world = two_nodes().to_training()
    world.trainer_reports("training", 10)
    world.trainer_ends(0)
    assert GROUPS in deleted(world.reconcile())
