"""vLLM servers by demand with the real KEDA, where it is built: the example's ScaledObject, on a real API server."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import keda
from tests.support.apiserver import ApiServer
from tests.support.go_controller import need
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.operator import OperatorProcess
from tests.support.specs import played_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "autoscaling" / "keda.yaml"


@pytest.fixture(scope="module")
def prometheus(cluster: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[keda.Answers]:
    """What KEDA asks. It runs beside the controller of HorizontalPodAutoscalers."""
    for program in ("keda-operator", "keda-adapter"):
        need(program, "KEDA")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WATCH_NAMESPACE", "")  # all of them
        patch.setenv("KEDA_CLUSTER_OBJECT_NAMESPACE", "default")
        keda.start(cluster, tmp_path_factory.mktemp("keda"))
    cluster.start_autoscaler()
    with keda.Answers() as answers:
        yield answers


@pytest.fixture
def run(prometheus: keda.Answers, runs: Kubectl, operator_kubeconfig: Path, tmp_path: Path) -> Iterator[str]:
    """A run that trains, with two vLLM servers."""
    name = "long-keda"
    with OperatorProcess(operator_kubeconfig, tmp_path / "operator.log"):
        runs.apply(played_run(name, inference={"replicas": 2}))
        eventually(lambda: _state(runs, name) == "Training", "the run trains", PATIENCE)
        yield name


def _state(runs: Kubectl, name: str) -> str:
    return str((runs.get("gtr", name).get("status") or {}).get("state"))


def _servers(runs: Kubectl, name: str) -> tuple[int, int]:
    """That are wanted, and that there are."""
    live = runs.get("gtr", name)
    return live["spec"]["inference"]["replicas"], live["status"]["inference"]["replicas"]


def _has(runs: Kubectl, name: str, servers: int) -> bool:
    return _servers(runs, name) == (servers, servers)


def _scaled_object(runs: Kubectl, name: str, server: str) -> dict[str, Any]:
    """The example's, for this run, which is in a hurry."""
    text = EXAMPLE.read_text().replace("sums", name).replace('namespace="lab"', f'namespace="{runs.namespace}"')
    found: dict[str, Any] = yaml.safe_load(text)
    found["metadata"]["namespace"] = runs.namespace
    found["spec"]["pollingInterval"] = 1
    at_once = {"stabilizationWindowSeconds": 0}
    found["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] = {"scaleUp": at_once, "scaleDown": at_once}
    found["spec"]["triggers"][0]["metadata"]["serverAddress"] = server
    return found


def test_keda_follows_the_demand_between_its_bounds_and_does_nothing_where_none_is_known(
    prometheus: keda.Answers, runs: Kubectl, run: str
) -> None:
    wanted = _scaled_object(runs, run, prometheus.url)
    each = int(wanted["spec"]["triggers"][0]["metadata"]["threshold"])
    runs.apply(wanted)

    def failing() -> bool:
        found = runs.list("hpa")
        conditions = [one for hpa in found for one in (hpa.get("status") or {}).get("conditions") or []]
        return any(one["reason"] == "FailedGetExternalMetric" for one in conditions)

    eventually(failing, "the autoscaler has no metric", PATIENCE)
    assert _servers(runs, run) == (2, 2)

    for waiting, servers, why in (
        (3 * each, 3, "three serve what waits"),
        (100 * each, 4, "it stops at its upper bound"),
        (0, 1, "one is left where nothing waits"),
    ):
        prometheus.value = waiting
        eventually(partial(_has, runs, run, servers), why, PATIENCE)
    (query,) = prometheus.queries
    assert f'gymtrain_gateway_queued_requests{{namespace="{runs.namespace}",run="{run}"}}' in query
    status = runs.get("gtr", run)["status"]
    assert (status["state"], status["attempt"]) == ("Training", 1)
