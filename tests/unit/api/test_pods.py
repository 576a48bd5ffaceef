"""What a pod's status says."""

from typing import Any

import pytest

from gymtrain_api.pods import condition, container_statuses, phase, stuck_container, unschedulable


def _pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": status}


def _waiting(name: str, reason: str) -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": f"{reason}, said the kubelet"}}}


def test_a_pod_without_a_status_says_nothing() -> None:
    pod = {"metadata": {"name": "p"}}
    assert (phase(pod), condition(pod, "Ready"), unschedulable(pod), stuck_container(pod)) == ("", {}, None, None)
    assert list(container_statuses(pod)) == []


def test_a_condition_is_found_by_its_type() -> None:
    ready = {"type": "Ready", "status": "True"}
    pod = _pod(phase="Running", conditions=[{"type": "PodScheduled", "status": "True"}, ready])
    assert (phase(pod), condition(pod, "Ready"), condition(pod, "Initialized")) == ("Running", ready, {})


@pytest.mark.parametrize(
    ("scheduled", "words"),
    [
        ({"status": "False", "message": "0/3 nodes are available"}, "0/3 nodes are available"),
        ({"status": "False"}, ""),
        ({"status": "True"}, None),
    ],
)
def test_the_scheduler_says_why_no_node_takes_a_pod(scheduled: dict[str, Any], words: str | None) -> None:
    assert unschedulable(_pod(conditions=[{"type": "PodScheduled", **scheduled}])) == words


def test_init_containers_come_first_and_are_told_apart() -> None:
    pod = _pod(initContainerStatuses=[{"name": "a"}], containerStatuses=[{"name": "b"}])
    assert [(status["name"], init) for status, init in container_statuses(pod)] == [("a", True), ("b", False)]


def test_a_container_that_is_on_its_way_is_not_stuck() -> None:
    on_their_way = [_waiting("a", "PodInitializing"), _waiting("b", "ContainerCreating"), {"name": "c", "state": {}}]
    assert stuck_container(_pod(containerStatuses=on_their_way)) is None


def test_the_first_container_that_is_stuck_is_told_with_what_it_waits_for() -> None:
    containers = [_waiting("b", "ContainerCreating"), _waiting("c", "ErrImagePull"), _waiting("d", "CrashLoopBackOff")]
    found = stuck_container(_pod(containerStatuses=containers))
    assert found == (containers[1], containers[1]["state"]["waiting"])
