"""Upgrades and backups on the real cluster, while runs train (docs/upgrades.md).

Part of `make test-upgrades`, some twenty minutes. No other test may run beside it: it takes the operator away.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import MINUTES, kill_pod, step, trainer_events, wait_for_steps
from tests.support.helm import Helm
from tests.support.images import TAG
from tests.support.kubectl import Kubectl, eventually
from tests.support.releases import LAST, build_last_images, last_release
from tests.support.runs import example, exported, tiny_run

pytestmark = [pytest.mark.upgrades, pytest.mark.timeout(40 * MINUTES)]

type Pods = dict[str, tuple[str, list[str], int]]


def _pods(kubectl: Kubectl, run: str) -> Pods:
    """By name: UID, images, and how often containers were restarted. Without preflight's, which has ended."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            [container["image"] for container in pod["spec"]["containers"]],
            sum(state["restartCount"] for state in pod["status"]["containerStatuses"]),
        )
        for pod in kubectl.pods(run)
        if pod["metadata"]["labels"]["gymtrain.dev/role"] != "preflight"
    }


def _tags(pods: Pods) -> set[str]:
    return {image.rpartition(":")[2] for _, images, _ in pods.values() for image in images}


def _last_run(release: Path, name: str, **config: Any) -> dict[str, Any]:
    """The last release's own example, longer."""
    run = example(str(release / "examples/tiny.yaml"), name)
    run["spec"]["trainer"]["config"].update(config)
    return run


def test_runs_train_on_from_the_last_release_to_this_one_and_back(
    main_release: Helm, kubectl: Kubectl, tmp_path: Path
) -> None:
    old = last_release(tmp_path)
    build_last_images(old)
    main_release.run("uninstall", "gymtrain", "--wait")
    main_release.upgrade("gymtrain", chart=old / "charts/gymtrain", registry="docker.io/", tag=LAST)
    kubectl.apply(_last_run(old, "short"), _last_run(old, "long", max_steps=1000, save_steps=20))
    kubectl.wait_condition("short", "Complete", 8 * MINUTES)
    ended = kubectl.get("gymtrainingrun", "short")["status"]
    wait_for_steps(kubectl, "long", 25, "its first checkpoint")
    pods = _pods(kubectl, "long")
    assert _tags(pods) == {LAST}

    main_release.upgrade("gymtrain")
    wait_for_steps(kubectl, "long", 25, "the upgrade")
    assert _pods(kubectl, "long") == pods, "an upgrade restarts nothing"
    assert kubectl.get("gymtrainingrun", "short")["status"] == ended

    # An attempt that the new operator makes is of the run's own release, from its checkpoint.
    kill_pod(kubectl, "long", role="trainer")
    eventually(lambda: kubectl.pods("long", role="trainer", attempt="2"), "the second attempt", 4 * MINUTES)
    eventually(lambda: trainer_events(kubectl, "long", "step"), "it trains", 4 * MINUTES)
    assert trainer_events(kubectl, "long", "step")[0]["step"] > 20
    kubectl.apply(tiny_run("later", max_steps=400))
    wait_for_steps(kubectl, "later", 5, "it was applied", 8 * MINUTES)
    pods, later = _pods(kubectl, "long"), _pods(kubectl, "later")
    assert (_tags(pods), _tags(later)) == ({LAST}, {TAG})

    main_release.run("rollback", "gymtrain", "--wait")
    for run in ("long", "later"):
        wait_for_steps(kubectl, run, 25, "the operator of before")
    assert (_pods(kubectl, "long"), _pods(kubectl, "later")) == (pods, later), "nor does the way back"
    kubectl.wait_condition("later", "Complete", 10 * MINUTES)
    kubectl.wait_condition("long", "Complete", 20 * MINUTES)
    assert kubectl.get("gymtrainingrun", "long")["status"]["attempt"] == 2


def test_runs_come_back_from_a_backup_of_their_objects_and_volumes(operator: Kubectl, kubectl: Kubectl) -> None:
    ended, training = tiny_run("ended"), tiny_run("training", max_steps=300, save_steps=10)
    for run in (ended, training):
        del run["spec"]["trainer"]["checkpoint"]["retain"]  # the volumes are kept, as if they were restored
    kubectl.apply(ended, training)
    kubectl.wait_condition("ended", "Complete", 8 * MINUTES)
    eventually(lambda: step(kubectl, "training") > 20, "two checkpoints", 4 * MINUTES)
    completed = kubectl.get("gymtrainingrun", "ended")["status"]["completionTime"]
    backup = [exported(kubectl, name) for name in ("ended", "training")]
    kubectl.run("delete", "gtr", "--all", "--timeout=60s")
    eventually(lambda: not kubectl.list("pods"), "their pods are gone", 2 * MINUTES)

    for run in backup:
        kubectl.run("create", "-f", "-", stdin=json.dumps(run))
    kubectl.wait_condition("ended", "Complete", MINUTES)
    assert kubectl.get("gymtrainingrun", "ended")["status"]["completionTime"] == completed
    kubectl.wait_condition("training", "Complete", 10 * MINUTES)
    assert not kubectl.pods("ended"), "what had ended trains nothing"
    steps = [line["step"] for line in trainer_events(kubectl, "training", "step")]
    assert steps[0] > 20, "it goes on from its last checkpoint"
    assert steps == list(range(steps[0], 301))
