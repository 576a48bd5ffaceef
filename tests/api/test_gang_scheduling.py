"""Runs whose pods are placed together or not at all, by the real scheduler of scheduler-plugins where it is built."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.conftest import OPERATOR_NAMESPACE
from tests.support.apiserver import ApiServer
from tests.support.chart import CHART
from tests.support.fakenode import NODE
from tests.support.go_controller import admin_of, install_crds, need
from tests.support.install import token_of_chart
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.operator import OperatorProcess
from tests.support.specs import played_run

_SCHEDULER = "gangs"
_GPUS = 3
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
def operator(cluster: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """With the rights that the chart gives it for this, beside the scheduler and a node with three GPUs."""
    need("scheduler-plugins", "scheduler-plugins")
    install_crds(cluster, "crds-scheduler-plugins", "pod-groups.yaml", "scheduler-plugins")
    folder = tmp_path_factory.mktemp("gangs")
    access = {"clientConnection": {"kubeconfig": str(cluster.kubeconfig)}}
    (folder / "config.yaml").write_text(json.dumps(_CONFIG | access))
    cluster.run("scheduler-plugins", f"--config={folder / 'config.yaml'}", "--secure-port=0")
    amounts = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "500", "nvidia.com/gpu": str(_GPUS)}
    ready = {"type": "Ready", "status": "True", "reason": "Played", "message": ""}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    admin = admin_of(cluster)
    admin.run("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    admin.run("taint", "nodes", NODE, "node.kubernetes.io/not-ready-", check=False)
    admin.run("create", "namespace", OPERATOR_NAMESPACE, check=False)
    token = token_of_chart(cluster, CHART, f"gangScheduling.schedulerName={_SCHEDULER}")
    kubeconfig = cluster.kubeconfig_for("gangs", token)
    with OperatorProcess(kubeconfig, folder / "log", f"--gang-scheduler={_SCHEDULER}") as process:
        yield process


def _two_gpus(name: str) -> dict[str, Any]:
    return played_run(name, inference={"gpus": 1}, trainer={"gpus": 1})


def _placed(runs: Kubectl, name: str) -> list[str]:
    """Roles of the pods with a GPU that have a node."""
    pods = [*runs.pods(name, role="trainer"), *runs.pods(name, role="inference")]
    return sorted(pod["metadata"]["labels"]["gymtrain.dev/role"] for pod in pods if pod["spec"].get("nodeName"))


def test_a_run_that_would_get_half_of_its_gpus_gets_none_until_there_are_all(
    runs: Kubectl, operator: OperatorProcess
) -> None:
    runs.apply(_two_gpus("long-first"))
    both = ["inference", "trainer"]
    eventually(lambda: _placed(runs, "long-first") == both, "the first run has its GPUs", PATIENCE)

    runs.apply(_two_gpus("second"))
    there = ("trainer", "inference")
    eventually(lambda: all(runs.pods("second", role=one) for one in there), "the second run has pods", PATIENCE)

    def told() -> bool:
        """Both wait, and the scheduler has looked at them."""
        pods = [pod for one in there for pod in runs.pods("second", role=one)]
        found = [c for pod in pods for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"]
        return len(found) == len(pods) and all(one["status"] == "False" for one in found)

    eventually(told, "the scheduler says why the second run waits", PATIENCE)
    assert _placed(runs, "second") == []

    def passed_on() -> bool:
        """The operator sees the scheduler's words after this test does."""
        conditions = runs.get("gymtrainingrun", "second")["status"]["conditions"]
        return any("run-gang" in one["message"] or "group" in one["message"].lower() for one in conditions)

    eventually(passed_on, "the run says why it waits", PATIENCE)

    runs.run("delete", "gtr", "long-first", timeout=120)
    eventually(lambda: _placed(runs, "second") == both, "the second run has its GPUs", PATIENCE)
    runs.wait_condition("second", "Complete", PATIENCE)
