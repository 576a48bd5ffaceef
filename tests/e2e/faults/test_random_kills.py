"""A trainer that is killed again and again: the final weights come from the groups that they come from undisturbed.

Takes half an hour, and is part of `make test-faults`. GYMTRAIN_KILLS sets how often it is killed: 4 take 12 minutes.
"""

import json
import os
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.faults import MINUTES, assert_no_wrong_sample, checked_run, kill_at
from tests.support.kubectl import Kubectl, eventually
from tests.support.trainer_tests import run_to_its_end

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3 * 3600)]

KILLS = int(os.environ.get("GYMTRAIN_KILLS", "20"))
SEED = 14
STEPS_A_KILL = 100  # so that the run hasn't ended before the last one

_LOOK = """
import csv, json, pathlib
run = pathlib.Path("/checkpoints")
lines = (json.loads(line) for file in (run / "records").glob("*.jsonl") for line in file.open())
trained = {(line["step"], line["group"]) for line in lines}
with (run / "rewards.csv").open() as file:
    steps = [int(row["step"]) for row in csv.DictReader(file)]
print("\\n" + json.dumps({"groups": sorted(group for _, group in trained), "steps": steps}))
"""

_AT_ONCE = """
from gymtrain_operator.reconcile import attempts

assert attempts.MAX_BACKOFF_SECONDS
attempts.MAX_BACKOFF_SECONDS = 2
"""


@pytest.fixture
def retries_at_once(operator: Kubectl) -> Iterator[None]:
    """The operator begins the next attempt after 2 s. After the fifth it would wait for 5 minutes each time."""
    deployment, mount = "deployment/gymtrain-operator", {"name": "at-once", "mountPath": "/at-once"}
    container = {
        "name": "operator",
        "env": [{"name": "PYTHONPATH", "value": f"{mount['mountPath']}:/opt/gymtrain"}],
        "volumeMounts": [mount],
    }
    spec = {"containers": [container], "volumes": [{"name": mount["name"], "configMap": {"name": mount["name"]}}]}
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": mount["name"]}}
    operator.apply(code | {"data": {"sitecustomize.py": _AT_ONCE}})
    operator.run("patch", deployment, "--patch", json.dumps({"spec": {"template": {"spec": spec}}}))
    operator.run("rollout", "status", deployment, "--timeout=180s", timeout=200)
    yield
    operator.run("rollout", "undo", deployment)
    operator.run("rollout", "status", deployment, "--timeout=180s", timeout=200)
    operator.run("delete", "configmap", mount["name"])


def _run(name: str) -> dict[str, Any]:
    run = checked_run(name, max_steps=STEPS_A_KILL * KILLS, save_steps=7)
    run["spec"]["trainer"]["records"] = {"samples": "All", "format": "JSONL"}
    run["spec"]["backoffLimit"] = KILLS
    return run


def _behind_the_weights(kubectl: Kubectl, run: str) -> dict[str, list[int]]:
    """The groups, each as often as a step trained on it, and the steps."""
    volumes = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": f"{run}-checkpoints"}}]
    mounts = [{"name": "checkpoints", "mountPath": "/checkpoints", "readOnly": True}]
    command = ["python", "-c", _LOOK]
    log = run_to_its_end(kubectl, f"look-{run}", {}, 5 * MINUTES, volumes=volumes, command=command, volumeMounts=mounts)
    found: dict[str, list[int]] = json.loads(log.splitlines()[-1])
    return found


def _runs(kubectl: Kubectl, run: str, attempt: int) -> bool:
    if kubectl.get("gymtrainingrun", run).get("status", {}).get("attempt") != attempt:
        return False
    pods = kubectl.pods(run, role="trainer", attempt=str(attempt))
    return any(pod["status"].get("phase") == "Running" for pod in pods)


def test_a_trainer_killed_at_random_moments_trains_on_the_groups_of_an_undisturbed_run(
    retries_at_once: None, kubectl: Kubectl
) -> None:
    kubectl.apply(_run("undisturbed"))
    kubectl.wait_condition("undisturbed", "Complete", 30 * MINUTES)
    undisturbed = _behind_the_weights(kubectl, "undisturbed")
    assert undisturbed["steps"] == list(range(1, STEPS_A_KILL * KILLS + 1))
    assert undisturbed["groups"] == list(range(len(undisturbed["groups"]))), "every group is trained on once"

    choose = random.Random(SEED)
    kubectl.apply(_run("killed"))
    for attempt in range(1, KILLS + 1):
        eventually(partial(_runs, kubectl, "killed", attempt), f"attempt {attempt} runs", 8 * MINUTES)
        time.sleep(choose.uniform(0, 25))  # it starts, syncs, trains, saves
        kill_at(kubectl, "killed", "any", "trainer", "gymtrain_trainer")
    kubectl.wait_condition("killed", "Complete", 30 * MINUTES)
    assert kubectl.get("gymtrainingrun", "killed")["status"]["attempt"] == KILLS + 1, "none of the kills missed"
    assert_no_wrong_sample(kubectl, "killed")
    assert _behind_the_weights(kubectl, "killed") == undisturbed
