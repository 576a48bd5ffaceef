"""Why a pod doesn't run, in words."""

from typing import Any

import pytest

from gymtrain_operator.reconcile.pod_diagnosis import crashed_containers, problem, was_disrupted


def _pod(**status: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "p"}, "status": status}


def _waiting(reason: str, message: str = "", init: bool = False, **more: Any) -> dict[str, Any]:
    status = {"name": "c", "state": {"waiting": {"reason": reason, "message": message}}, **more}
    return _pod(phase="Pending", **{"initContainerStatuses" if init else "containerStatuses": [status]})


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (
            _pod(phase="Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": "no nodes"}]),
            "pod p can't be scheduled: no nodes",
        ),
        (
            _waiting("ImagePullBackOff", "not found"),
            "pod p, container c: ImagePullBackOff: not found; check the image's name and the pull secrets",
        ),
        (
            _waiting("CreateContainerConfigError", 'secret "s" not found', init=True),
            'pod p, container c: CreateContainerConfigError: secret "s" not found; create what the container refers to',
        ),
        (
            _waiting("CrashLoopBackOff", lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            "pod p, container c: CrashLoopBackOff (it ended with exit code 137, OOMKilled)",
        ),
        (_pod(phase="Failed", reason="Evicted", message="low on disk"), "pod p failed: Evicted low on disk"),
        (_waiting("ContainerCreating"), ""),
        (_waiting("PodInitializing"), ""),
        (_pod(phase="Running"), ""),
        (_pod(), ""),
    ],
)
def test_trouble_is_named_with_its_cure(pod: dict[str, Any], words: str) -> None:
    assert problem(pod) == words


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"state": {"terminated": {"exitCode": 1}}}, [("c", False)]),
        ({"state": {"terminated": {"exitCode": 0}}}, []),
        ({"state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": 1}}}, [("c", False)]),
        ({"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1}}}, [("c", True)]),
        ({"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1}}, "ready": True}, []),
        ({"state": {"running": {}}}, []),
    ],
)
def test_the_log_of_a_crash_is_that_of_the_instance_that_crashed(
    status: dict[str, Any], expected: list[tuple[str, bool]]
) -> None:
    assert crashed_containers(_pod(containerStatuses=[{"name": "c", **status}])) == expected


def test_the_clusters_doing_is_told_from_the_pods_own() -> None:
    assert was_disrupted(_pod(phase="Failed", reason="NodeShutdown"))
    assert was_disrupted(_pod(phase="Failed", conditions=[{"type": "DisruptionTarget", "status": "True"}]))
    assert not was_disrupted(_pod(phase="Failed", reason="DeadlineExceeded"))
    assert not was_disrupted(_pod(phase="Failed", reason="Evicted")), "it filled its own volume"
