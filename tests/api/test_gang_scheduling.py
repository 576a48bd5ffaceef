"""Runs whose pods are placed together or not at all, by the real scheduler of scheduler-plugins and by Volcano, each
where it is built."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.conftest import OPERATOR_NAMESPACE, kubeconfig_of_chart
from tests.support.apiserver import ApiServer, document
from tests.support.chart import CHART
from tests.support.fakenode import NODE
from tests.support.go_controller import admin_of, install_crds, need
from tests.support.install import token_of_chart
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.operator import OperatorProcess
from tests.support.pages import yaml_blocks
from tests.support.specs import played_run

_SCHEDULER = "gangs"
_VOLCANO_GPUS = 5  # of the run that the page shows
_CONFIG: dict[str, Any] = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "profiles": [
        {
            "schedulerName": _SCHEDULER,
            "plugins": {
                "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
                "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
            },
            "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 5}}],
        }
    ],
}


@pytest.fixture(scope="module")
def namespace(cluster: ApiServer) -> str:
    """Of the operator."""
    admin_of(cluster).run("create", "namespace", OPERATOR_NAMESPACE, check=False)
    return OPERATOR_NAMESPACE


@pytest.fixture
def coscheduling(cluster: ApiServer, namespace: str, tmp_path: Path) -> Iterator[None]:
    """The scheduler of scheduler-plugins, and the operator that makes groups for it, with the rights for that."""
    need("scheduler-plugins", "scheduler-plugins")
    install_crds(cluster, "crds-scheduler-plugins", "pod-groups.yaml", "scheduler-plugins")
    access = {"clientConnection": {"kubeconfig": str(cluster.kubeconfig)}}
    (tmp_path / "config.yaml").write_text(json.dumps(_CONFIG | access))
    cluster.run("scheduler-plugins", f"--config={tmp_path / 'config.yaml'}", "--secure-port=0")
    token = token_of_chart(cluster, CHART, f"gangScheduling.schedulerName={_SCHEDULER}")
    kubeconfig = cluster.kubeconfig_for("gangs", token)
    with OperatorProcess(kubeconfig, tmp_path / "log", f"--gang-scheduler={_SCHEDULER}"):
        yield


@pytest.fixture(scope="module")
def volcano(cluster: ApiServer) -> None:
    """As its chart configures it, without its webhooks. Without its controllers no queue is ever open."""
    need("vc-scheduler", "Volcano", "volcano")
    install_crds(cluster, "crds-volcano", "volcano.yaml", "Volcano")
    access = (f"--kubeconfig={cluster.kubeconfig}", "--leader-elect=false")
    cluster.run("vc-controller-manager", *access)
    cluster.run("vc-scheduler", *access, f"--scheduler-conf={document('volcano', 'volcano-scheduler.conf')}")


@pytest.fixture
def operator(cluster: ApiServer, volcano: None, namespace: str, tmp_path: Path) -> Iterator[None]:
    """As it is by default, beside Volcano."""
    with OperatorProcess(kubeconfig_of_chart(cluster), tmp_path / "log"):
        yield


def _give_gpus(cluster: ApiServer, number: int) -> None:
    """Makes the node ready, with so many GPUs."""
    gpus = {"nvidia.com/gpu": str(number)}
    amounts = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "500"} | gpus
    ready = {"type": "Ready", "status": "True", "reason": "Played", "message": ""}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    admin = admin_of(cluster)
    admin.run("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    admin.run("taint", "nodes", NODE, "node.kubernetes.io/not-ready-", check=False)


def _members(runs: Kubectl, name: str) -> list[dict[str, Any]]:
    """Pods with a GPU."""
    return [*runs.pods(name, role="inference"), *runs.pods(name, role="trainer")]


def _placed(runs: Kubectl, name: str) -> int:
    """How many of them have a node."""
    return sum(bool(pod["spec"].get("nodeName")) for pod in _members(runs, name))


def _waits_as_a_whole(runs: Kubectl, name: str, pods: int, word: str) -> None:
    """The scheduler has looked at all pods of the group, and placed none; the run's conditions have its words."""
    eventually(lambda: len(_members(runs, name)) == pods, f"{name} has pods", PATIENCE)

    def told() -> bool:
        found = [c for pod in _members(runs, name) for c in pod["status"].get("conditions", [])]
        scheduled = [one["status"] for one in found if one["type"] == "PodScheduled"]
        return scheduled == ["False"] * pods

    eventually(told, f"the scheduler says why {name} waits", PATIENCE)
    assert _placed(runs, name) == 0

    def passed_on() -> bool:
        """The operator sees the scheduler's words after this test does."""
        conditions = runs.get("gymtrainingrun", name)["status"]["conditions"]
        return any(word in one["message"].lower() for one in conditions)

    eventually(passed_on, f"{name} says why it waits", PATIENCE)


def test_a_run_that_would_get_half_of_its_gpus_gets_none_until_there_are_all(
    cluster: ApiServer, runs: Kubectl, coscheduling: None
) -> None:
    _give_gpus(cluster, 3)
    runs.apply(_two_gpus("long-first"))
    eventually(lambda: _placed(runs, "long-first") == 2, "the first run has its GPUs", PATIENCE)

    runs.apply(_two_gpus("second"))
    _waits_as_a_whole(runs, "second", 2, "group")

    runs.run("delete", "gtr", "long-first", timeout=120)
    eventually(lambda: _placed(runs, "second") == 2, "the second run has its GPUs", PATIENCE)
    runs.wait_condition("second", "Complete", PATIENCE)


def _two_gpus(name: str) -> dict[str, Any]:
    return played_run(name, inference={"gpus": 1}, trainer={"gpus": 1})


def test_volcano_places_all_pods_of_the_pages_run_or_none(cluster: ApiServer, runs: Kubectl, operator: None) -> None:
    _give_gpus(cluster, _VOLCANO_GPUS + 2)
    runs.apply(*_of_page("long-sums"))
    eventually(lambda: _placed(runs, "long-sums") == _VOLCANO_GPUS, "the first run has its GPUs", PATIENCE)

    runs.apply(*_of_page("sums"))
    _waits_as_a_whole(runs, "sums", _VOLCANO_GPUS, "minavailable")

    runs.run("delete", "gtr", "long-sums", timeout=120)
    eventually(lambda: _placed(runs, "sums") == _VOLCANO_GPUS, "the second run has its GPUs", PATIENCE)
    runs.wait_condition("sums", "Complete", PATIENCE)


def test_volcano_places_no_pod_of_a_run_with_fewer_than_its_group_asks_for(
    cluster: ApiServer, runs: Kubectl, operator: None
) -> None:
    _give_gpus(cluster, _VOLCANO_GPUS + 2)
    group, run = _of_page("sums")
    run["spec"]["inference"]["replicas"] -= 1
    runs.apply(group, run)
    fewer = _VOLCANO_GPUS - 1
    _waits_as_a_whole(runs, "sums", fewer, "minavailable")

    group["spec"]["minMember"] -= 1
    runs.apply(group)
    eventually(lambda: _placed(runs, "sums") == fewer, "the run has its GPUs", PATIENCE)
    runs.wait_condition("sums", "Complete", PATIENCE)


def _of_page(name: str) -> list[dict[str, Any]]:
    """Group and run as the page shows them for Volcano, under another name."""
    (block,) = [one for one in yaml_blocks("docs/queueing.md") if "scheduling.volcano.sh" in one]
    return list(yaml.safe_load_all(re.sub(r"\bsums\b", name, block)))
