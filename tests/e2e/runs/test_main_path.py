"""One apply trains for real: servers, weights, training, status, clean-up; the operator may die at any stage."""

import json
from typing import Any

import pytest

from tests.support.kubectl import Kubectl, eventually, names
from tests.support.runs import unhurried_run

MINUTES = 60
OWNED = "pods,deployments,replicasets,jobs,services,configmaps,persistentvolumeclaims,networkpolicies"


def _kill_operator(operator: Kubectl) -> None:
    operator.run(
        "delete", "pods", "-l", "app.kubernetes.io/name=gymtrain", "--grace-period=0", "--force", "--wait=false"
    )


def _state(kubectl: Kubectl, run: str) -> str:
    return str(kubectl.get("gymtrainingrun", run).get("status", {}).get("state", ""))


def _restarts(kubectl: Kubectl, run: str) -> list[tuple[str, int]]:
    return [
        (pod["metadata"]["name"], status["restartCount"])
        for pod in kubectl.pods(run)
        for status in pod["status"].get("containerStatuses", [])
    ]


@pytest.fixture
def completed(operator: Kubectl, kubectl: Kubectl) -> dict[str, Any]:
    """A run that completed although the operator was killed while it was in each of its stages."""
    kubectl.apply(unhurried_run("main", max_steps=100))  # for longer than a killed operator takes to look again
    eventually(lambda: kubectl.pods("main", role="preflight"), "the preflight pod exists", 60)
    _kill_operator(operator)
    eventually(lambda: kubectl.pods("main", role="inference"), "the vLLM pod exists", 3 * MINUTES)
    _kill_operator(operator)
    eventually(lambda: _state(kubectl, "main") == "Training", "the run trains", 6 * MINUTES)
    _kill_operator(operator)
    kubectl.wait_condition("main", "Complete", 10 * MINUTES)
    return kubectl.get("gymtrainingrun", "main")


def test_a_run_completes_through_operator_kills_and_leaves_nothing_when_deleted(
    completed: dict[str, Any], kubectl: Kubectl
) -> None:
    # One run, one walk: a second run of its own for each of these would double the ring's minutes.
    status = completed["status"]
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions["PreflightPassed"] == "True"
    assert conditions["WeightSyncReady"] == "True"
    assert conditions["Failed"] == "False"
    max_steps = completed["spec"]["trainer"]["config"]["max_steps"]
    assert status["progress"]["step"] == max_steps
    assert status["progress"]["maxSteps"] == max_steps
    assert status["weightSync"]["transport"] == "HTTPFull"
    assert status["attempt"] == 1, "a killed operator costs no attempt"
    assert status["observedGeneration"] == completed["metadata"]["generation"]

    # Every step is in the trainer's log, under weights of this run.
    pod = kubectl.pods("main", role="trainer")[0]["metadata"]["name"]
    lines = [
        json.loads(line) for line in kubectl.logs(pod, "trainer").splitlines() if line.startswith('{"event": "step"')
    ]
    assert [line["step"] for line in lines] == list(range(1, max_steps + 1))

    # The servers go, the record stays.
    servers = "gymtrain.dev/run=main,gymtrain.dev/role in (gym,gateway,inference)"
    eventually(lambda: not kubectl.list("pods", servers), "the servers are gone", 60)

    # Not each earlier event: an operator that is killed between a status and its event posts none.
    events = [e for e in kubectl.list("events") if e["involvedObject"].get("name") == "main"]
    assert "TrainingCompleted" in {e["reason"] for e in events}

    table = kubectl.run("get", "gtr")
    assert "Complete" in table
    assert f"{max_steps}" in table

    owners = {o["uid"] for child in kubectl.list(OWNED) for o in child["metadata"].get("ownerReferences", [])}
    assert completed["metadata"]["uid"] in owners
    assert "finalizers" not in completed["metadata"], "nothing outside the cluster has to be released"

    kubectl.run("delete", "gymtrainingrun", "main")
    eventually(lambda: not [n for n in names(kubectl.list(OWNED)) if "main" in n], "everything of the run is gone", 60)
