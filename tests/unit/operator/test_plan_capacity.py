"""A cluster without room costs a run that has trained time, and never the run."""

from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.times import to_text
from tests.support.world import World, applied, deleted

NO_ROOM = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


def _no_room(world: World, reason: str = "Unschedulable") -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason, "message": NO_ROOM}
    return {"phase": "Pending", "conditions": [scheduled | {"lastTransitionTime": to_text(world.now)}]}


def _scheduled(world: World, waiting: dict[str, str]) -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": to_text(world.now)}
    statuses = [{"name": "main", "state": {"waiting": waiting}}]
    return {"phase": "Pending", "conditions": [scheduled], "containerStatuses": statuses}


def _second_attempt(**blocks: Any) -> World:
    """A run that has trained, in whose second attempt nothing has started yet."""
    world = World(startupDeadlineSeconds=60, **blocks).to_training(step=4)
    world.trainer_ends(1)
    world.objects["Pod"] = {}
    world.reconcile(11)
    assert world.existing("Job")[-1] == "run-trainer-2"
    return world


def _add(world: World, role: labels.Role, status: dict[str, Any]) -> None:
    attempt = {labels.ATTEMPT: str(world.status.attempt)} if role == labels.Role.TRAINER else {}
    world.add_pod(f"run-{role}-x", role, status, **attempt)


WAITING = [
    labels.Role.TRAINER,
    labels.Role.INFERENCE,
    labels.Role.INFERENCE_WORKER,
    labels.Role.GYM,
    labels.Role.GATEWAY,
]


@pytest.mark.parametrize("role", WAITING)
def test_a_later_attempt_that_finds_no_room_waits_and_says_for_what(role: labels.Role) -> None:
    world = _second_attempt()
    _add(world, role, _no_room(world))
    world.reconcile(70)
    assert world.condition(ConditionType.FAILED).status == "False"
    progressing = world.condition(ConditionType.PROGRESSING)
    assert (progressing.status, progressing.reason) == ("False", Reason.WAITING_FOR_CAPACITY)
    assert f"run-{role}-x" in progressing.message
    assert NO_ROOM in progressing.message
    world.reconcile(30 * 86400)
    assert world.condition(ConditionType.FAILED).status == "False"


def test_pods_that_a_queue_holds_back_are_waited_for() -> None:
    world = _second_attempt()
    _add(world, labels.Role.TRAINER, _no_room(world, "SchedulingGated"))
    world.reconcile(3600)
    assert world.condition(ConditionType.PROGRESSING).reason == Reason.WAITING_FOR_CAPACITY


def test_pods_that_nobody_makes_are_waited_for() -> None:
    """A quota refuses them, or a queue has suspended the Job: its controller says it in events alone."""
    world = _second_attempt()
    world.reconcile(5)
    assert world.condition(ConditionType.PROGRESSING).reason != Reason.WAITING_FOR_CAPACITY, "they are being made"
    world.reconcile(3600)
    progressing = world.condition(ConditionType.PROGRESSING)
    assert progressing.reason == Reason.WAITING_FOR_CAPACITY
    assert "kubectl describe job run-trainer-2" in progressing.message


def test_servers_that_a_quota_refuses_are_waited_for() -> None:
    world = _second_attempt()
    _add(world, labels.Role.TRAINER, {"phase": "Running"})
    refused = {"type": "ReplicaFailure", "status": "True", "message": "pods is forbidden: exceeded quota: gpus"}
    world.objects["Deployment"]["run-inference"]["status"] = {"conditions": [refused]}
    world.reconcile(3600)
    progressing = world.condition(ConditionType.PROGRESSING)
    assert progressing.reason == Reason.WAITING_FOR_CAPACITY
    assert "exceeded quota: gpus" in progressing.message


def test_a_resumed_run_waits_for_room_too() -> None:
    world = World(startupDeadlineSeconds=60).to_training(step=4)
    world.change(suspend=True)
    world.reconcile(5)
    world.seen.clear()
    world.change(suspend=False)
    world.reconcile(1000)
    _add(world, labels.Role.TRAINER, _no_room(world))
    world.reconcile(3600)
    assert world.condition(ConditionType.FAILED).status == "False"
    assert world.condition(ConditionType.PROGRESSING).reason == Reason.WAITING_FOR_CAPACITY


def test_the_deadline_counts_from_when_the_last_pod_found_room() -> None:
    world = _second_attempt()
    _add(world, labels.Role.TRAINER, _no_room(world))
    world.reconcile(3600)
    pulling = _scheduled(world, {"reason": "ImagePullBackOff", "message": "no such image"})
    world.objects["Pod"]["run-trainer-x"]["status"] = pulling
    world.reconcile(5)
    world.reconcile(50)
    assert world.condition(ConditionType.FAILED).status == "False"
    world.reconcile(20)
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == Reason.STARTUP_DEADLINE_EXCEEDED
    assert "no such image" in failed.message


def test_a_later_attempt_whose_pods_have_room_and_are_broken_ends_by_the_deadline() -> None:
    world = _second_attempt()
    _add(world, labels.Role.TRAINER, _scheduled(world, {"reason": "ErrImagePull", "message": "no such image"}))
    world.reconcile(70)
    assert world.condition(ConditionType.FAILED).reason == Reason.STARTUP_DEADLINE_EXCEEDED


def test_a_run_that_never_trained_keeps_the_deadline_in_later_attempts() -> None:
    world = World(startupDeadlineSeconds=60).to_servers()
    world.trainer_ends(1)
    world.reconcile(11)
    _add(world, labels.Role.TRAINER, _no_room(world))
    world.reconcile(70)
    assert NO_ROOM in world.condition(ConditionType.FAILED).message


def test_waiting_for_room_ends_by_the_deadline_of_the_whole_run() -> None:
    world = _second_attempt(activeDeadlineSeconds=500)
    _add(world, labels.Role.TRAINER, _no_room(world))
    world.reconcile(600)
    assert world.condition(ConditionType.FAILED).reason == Reason.DEADLINE_EXCEEDED


def test_an_attempt_that_gave_up_on_servers_without_room_is_begun_again_under_its_number() -> None:
    """The trainer has a deadline of its own for its servers, and so have nodes that wait for each other."""
    world = _second_attempt(backoffLimit=1)
    world.objects["Deployment"]["run-inference"]["status"] = {}
    for _ in range(5):
        _add(world, labels.Role.INFERENCE, _no_room(world))
        _add(world, labels.Role.TRAINER, {"phase": "Running"})
        world.trainer_reports("waiting_for_servers", message="waiting for vLLM")
        world.reconcile(1800)
        assert world.condition(ConditionType.PROGRESSING).reason == Reason.WAITING_FOR_CAPACITY
        del world.objects["Pod"]["run-trainer-x"]
        world.trainer_ends(1, '{"phase": "failed", "message": "servers not ready after 1800 s"}')
        assert deleted(world.reconcile(1)) == []
        assert world.condition(ConditionType.PROGRESSING).reason == Reason.WAITING_FOR_CAPACITY
        world.objects["Pod"] = {}  # the wait is what was going on when it ended
        assert deleted(world.reconcile(301)) == ["Job/run-trainer-2"]
        assert applied(world.reconcile(1)) == ["Job/run-trainer-2"]
    assert world.status.attempt == 2
    assert world.condition(ConditionType.FAILED).status == "False"


def test_an_attempt_that_lost_its_servers_to_a_full_cluster_does_not_count() -> None:
    world = World(backoffLimit=0).to_training(step=4)
    _add(world, labels.Role.INFERENCE, _no_room(world))
    world.reconcile(1800)
    world.trainer_ends(1, '{"phase": "failed", "message": "no usable rollout for 1800 s"}')
    world.reconcile(5)
    assert world.status.disrupted_attempts == [1]
    assert world.condition(ConditionType.FAILED).status == "False"


def test_one_vllm_server_more_than_there_is_room_for_excuses_no_attempt() -> None:
    """An autoscaler asks for it again and again; the others serve the run meanwhile."""
    world = World(backoffLimit=0, inference={"replicas": 2}).to_training(step=4)
    ready = {"type": "Ready", "status": "True"}
    world.add_pod("run-inference-a", labels.Role.INFERENCE, {"phase": "Running", "conditions": [ready]})
    _add(world, labels.Role.INFERENCE, _no_room(world))
    world.reconcile(1800)
    world.trainer_ends(1)
    world.reconcile(5)
    assert world.status.disrupted_attempts == []
    assert world.condition(ConditionType.FAILED).reason == Reason.BACKOFF_LIMIT_EXCEEDED


def test_servers_that_lose_their_place_after_the_trainer_failed_excuse_nothing() -> None:
    world = World(backoffLimit=0).to_training(step=4)
    world.trainer_ends(1)
    world.now += 5
    _add(world, labels.Role.INFERENCE, _no_room(world))
    world.reconcile()
    assert world.condition(ConditionType.FAILED).reason == Reason.BACKOFF_LIMIT_EXCEEDED
