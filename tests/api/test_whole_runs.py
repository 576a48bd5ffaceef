"""Whole runs with the real operator, API server and controllers; only the pods are played (support.fakenode)."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubectl import PATIENCE, Kubectl, eventually, names
from tests.support.operator import OperatorProcess
from tests.support.runs import exported
from tests.support.specs import played_run

_OWNED = "pods,services,configmaps,persistentvolumeclaims,deployments,replicasets,jobs,networkpolicies"


@pytest.fixture
def operator(operator_kubeconfig: Path, tmp_path: Path) -> Iterator[OperatorProcess]:
    """One operator, without election."""
    with OperatorProcess(operator_kubeconfig, tmp_path / "operator.log") as process:
        yield process


def _run(name: str, **spec: Any) -> dict[str, Any]:
    return played_run(name, **{"trainer": {"checkpoint": {"size": "1Gi", "retain": "Delete"}}, **spec})


def _children(kubectl: Kubectl, run: str) -> list[str]:
    return [name for name in names(kubectl.list(_OWNED)) if f"/{run}" in name]


def test_a_run_completes(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(_run("good"))
    runs.wait_condition("good", "Complete", PATIENCE)
    status = runs.get("gtr", "good")["status"]
    assert status["state"] == "Complete"
    assert status["progress"]["step"] == status["progress"]["maxSteps"] == 3
    assert status["weightSync"]["transport"] == "HTTPFull"
    assert "completionTime" in status


def test_runs_whose_names_go_into_each_other_complete(runs: Kubectl, operator: OperatorProcess) -> None:
    """Each is called as an object of the first is."""
    pair = ("pair", "pair-training", "pair-gym")
    runs.apply(*(_run(name) for name in pair))
    for name in pair:
        runs.wait_condition(name, "Complete", 180)


def test_a_run_without_agents_completes(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(_run("direct", rollout={"mode": "Verify"}))
    runs.wait_condition("direct", "Complete", PATIENCE)
    assert [name for name in names(runs.list("services")) if "agent" in name] == []


def test_a_deleted_run_leaves_nothing(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(_run("gone"))
    eventually(lambda: runs.pods("gone", role="trainer"), "the trainer's pod is there", PATIENCE)
    runs.run("delete", "gtr", "gone")
    eventually(lambda: not _children(runs, "gone"), "everything of the run is gone", PATIENCE)


def test_a_kept_volume_outlives_its_run_and_is_found_by_the_next_of_its_name(
    runs: Kubectl, operator: OperatorProcess
) -> None:
    run = _run("kept", trainer={"checkpoint": {"size": "1Gi"}})
    runs.apply(run)
    runs.wait_condition("kept", "Complete", 90)
    runs.run("delete", "gtr", "kept")
    eventually(lambda: _children(runs, "kept") == ["PersistentVolumeClaim/kept-checkpoints"], "the rest is gone", 60)
    (claim,) = runs.list("persistentvolumeclaims", "gymtrain.dev/run=kept")

    runs.apply(run)
    runs.wait_condition("kept", "Complete", 90)
    deleted = '{"spec": {"trainer": {"checkpoint": {"retain": "Delete"}}}}'
    runs.run("patch", "gtr", "kept", "--type=merge", "-p", deleted)

    def owners() -> list[str]:
        (found,) = runs.list("persistentvolumeclaims", "gymtrain.dev/run=kept")
        assert found["metadata"]["uid"] == claim["metadata"]["uid"], "it is the same volume"
        return [owner["uid"] for owner in found["metadata"].get("ownerReferences", [])]

    eventually(lambda: owners() == [runs.get("gtr", "kept")["metadata"]["uid"]], "it goes with the run now", 60)
    runs.run("delete", "gtr", "kept")
    eventually(lambda: not _children(runs, "kept"), "everything of the run is gone", 60)


def test_a_run_that_fails_preflight_starts_no_other_pod(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(_run("bad-config"))
    runs.wait_condition("bad-config", "Failed", PATIENCE)
    condition = runs.condition("bad-config", "PreflightPassed")
    assert condition["status"] == "False"
    assert condition["message"] == "spec.gym.configPaths[0]: no such file"
    roles = {pod["metadata"]["labels"]["gymtrain.dev/role"] for pod in runs.pods("bad-config")}
    assert roles <= {"preflight"}


def test_a_trainer_that_refuses_is_not_tried_again(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(_run("refused-one"))
    runs.wait_condition("refused-one", "Failed", PATIENCE)
    failed = runs.condition("refused-one", "Failed")
    assert failed["reason"] == "TrainerRefused"
    assert "the reward is always the same" in failed["message"]
    assert runs.get("gtr", "refused-one")["status"]["attempt"] == 1


def test_a_suspended_run_holds_no_pods_and_resumes(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(_run("slow-one"))
    eventually(lambda: runs.pods("slow-one", role="trainer"), "the trainer's pod is there", PATIENCE)
    runs.run("patch", "gtr", "slow-one", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    runs.wait_condition("slow-one", "Suspended", PATIENCE)
    eventually(lambda: not runs.pods("slow-one"), "its pods are gone", PATIENCE)
    runs.run("patch", "gtr", "slow-one", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    runs.wait_condition("slow-one", "Complete", PATIENCE)


def test_a_drain_takes_one_vllm_of_a_run_at_a_time(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(_run("slow-drained", inference={"replicas": 3}))

    def allowed(healthy: int) -> bool:
        budgets = runs.list("poddisruptionbudgets", "gymtrain.dev/run=slow-drained,gymtrain.dev/role=inference")
        found = [budget.get("status", {}) for budget in budgets]
        return [(one.get("currentHealthy"), one.get("disruptionsAllowed")) for one in found] == [(healthy, 1)]

    eventually(lambda: allowed(3), "all of vLLM's pods are ready", PATIENCE)
    # A played pod in the place of one that was evicted is ready at once: none may come for a while.
    none = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    runs.apply(none)

    def evict(pod: dict[str, Any]) -> bool:
        name = pod["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{runs.namespace}/pods/{name}/eviction"
        return "Success" in runs.run("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction), check=False)

    assert [evict(pod) for pod in runs.pods("slow-drained", role="inference")] == [True, False, False]
    runs.run("delete", "resourcequota", "none")
    eventually(lambda: allowed(3), "another is ready in its place", PATIENCE)


def test_a_finished_run_is_deleted_when_its_time_is_over(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(_run("brief", ttlSecondsAfterFinished=1))
    eventually(lambda: not runs.list("gtr"), "the run is deleted", PATIENCE)


def test_an_ended_run_that_is_restored_from_a_backup_trains_nothing(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(_run("saved"))
    runs.wait_condition("saved", "Complete", 90)
    completed = runs.get("gtr", "saved")["status"]["completionTime"]
    backup = exported(runs, "saved")
    runs.run("delete", "gtr", "saved")
    eventually(lambda: not _children(runs, "saved"), "everything of the run is gone", 60)

    runs.run("create", "-f", "-", stdin=json.dumps(backup))
    runs.wait_condition("saved", "Complete", 30)
    assert "without annotation gymtrain.dev/record" in runs.condition("saved", "Complete")["message"]
    assert runs.get("gtr", "saved")["status"]["completionTime"] == completed
    assert _children(runs, "saved") == []

    # What the message says to do.
    runs.run("delete", "gtr", "saved")
    del backup["metadata"]["annotations"]["gymtrain.dev/record"]
    runs.run("create", "-f", "-", stdin=json.dumps(backup))
    eventually(lambda: runs.list("jobs"), "it trains anew", 60)


def test_a_run_that_is_restored_while_it_trained_goes_on_with_the_next_attempt(
    runs: Kubectl, operator: OperatorProcess
) -> None:
    runs.apply(_run("long-saved", trainer={"checkpoint": {"size": "1Gi"}}))

    def record() -> dict[str, Any]:
        annotations = runs.get("gtr", "long-saved")["metadata"].get("annotations", {})
        return dict(json.loads(annotations.get("gymtrain.dev/record", "{}")))

    eventually(lambda: record().get("trained"), "that it trained is on record", 90)
    backup, uid = exported(runs, "long-saved"), runs.get("gtr", "long-saved")["metadata"]["uid"]
    runs.run("delete", "gtr", "long-saved")
    kept = ["PersistentVolumeClaim/long-saved-checkpoints"]
    eventually(lambda: _children(runs, "long-saved") == kept, "all but the volume is gone", 60)

    runs.run("create", "-f", "-", stdin=json.dumps(backup))
    eventually(lambda: runs.list("jobs"), "it trains", 90)
    assert names(runs.list("jobs")) == ["Job/long-saved-trainer-2"]
    config = json.loads(runs.get("configmap", "long-saved-run")["data"]["run.json"])
    assert config["lineage"] == uid, "its checkpoints are its own"


def test_an_operator_killed_again_and_again_loses_no_run(runs: Kubectl, operator: OperatorProcess) -> None:
    names_of_runs = [f"run-{number}" for number in range(4)]
    runs.apply(*(_run(name) for name in names_of_runs))
    for _ in range(4):
        time.sleep(1.5)
        operator.stop(signal.SIGKILL)
        operator.start()
    for name in names_of_runs:
        runs.wait_condition(name, "Complete", PATIENCE)
        assert runs.get("gtr", name)["status"]["attempt"] == 1
        assert len([job for job in runs.list("jobs") if job["metadata"]["name"].startswith(f"{name}-")]) == 1
