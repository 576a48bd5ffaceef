"""The subresource scale on a real API server: kubectl scale, and Kubernetes' own autoscaler."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gymtrain_api import labels
from tests.support.apiserver import ApiServer
from tests.support.chart import render
from tests.support.external_metrics import ExternalMetrics
from tests.support.kubectl import PATIENCE, Kubectl, KubectlError, eventually
from tests.support.operator import OperatorProcess
from tests.support.specs import played_run

_OTHERS = (labels.Role.TRAINER, labels.Role.GATEWAY, labels.Role.GYM)
EXAMPLES = Path(__file__).parents[2] / "examples" / "autoscaling"


@pytest.fixture(scope="module")
def operator(operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator for all tests."""
    with OperatorProcess(operator_kubeconfig, tmp_path_factory.mktemp("operator") / "operator.log") as process:
        yield process


def _run(name: str, **inference: Any) -> dict[str, Any]:
    return played_run(name, inference=inference)


def _training(kubectl: Kubectl, run: str) -> None:
    def trains() -> bool:
        return bool((kubectl.get("gtr", run).get("status") or {}).get("state") == "Training")

    eventually(trains, f"{run} trains", PATIENCE)


def _scale(kubectl: Kubectl, run: str) -> dict[str, Any]:
    path = f"/apis/gymtrain.dev/v1alpha1/namespaces/{kubectl.namespace}/gymtrainingruns/{run}/scale"
    found: dict[str, Any] = json.loads(kubectl.run("get", "--raw", path))
    assert (found["kind"], found["apiVersion"]) == ("Scale", "autoscaling/v1")
    return found


def _numbers(kubectl: Kubectl, run: str) -> tuple[int, int]:
    """vLLM servers that are wanted, and those that there are, as an autoscaler sees them."""
    scale = _scale(kubectl, run)
    return scale["spec"]["replicas"], scale["status"]["replicas"]


def _uids(kubectl: Kubectl, run: str, *roles: str) -> set[str]:
    """Pods of the run, or only those of some roles."""
    pods = kubectl.pods(run)
    return {pod["metadata"]["uid"] for pod in pods if not roles or pod["metadata"]["labels"][labels.ROLE] in roles}


# ── kubectl scale ────────────────────────────────────────────────────────────────────────────────


def test_kubectl_scale_adds_and_removes_vllm_servers_and_restarts_nothing(
    runs: Kubectl, operator: OperatorProcess
) -> None:
    runs.apply(_run("long-one"))
    _training(runs, "long-one")
    before, others = _uids(runs, "long-one"), _uids(runs, "long-one", *_OTHERS)
    runs.run("scale", "gtr/long-one", "--replicas=3")
    eventually(lambda: _numbers(runs, "long-one") == (3, 3), "two more are there", PATIENCE)
    assert before < _uids(runs, "long-one")
    selector = _scale(runs, "long-one")["status"]["selector"]
    assert len(runs.list("pods", selector)) == len(runs.pods("long-one", role="inference")) == 3

    runs.run("scale", "gtr/long-one", "--replicas=1", "--current-replicas=3")
    eventually(lambda: _numbers(runs, "long-one") == (1, 1), "one is left", PATIENCE)
    assert _uids(runs, "long-one", *_OTHERS) == others
    status = runs.get("gtr", "long-one")["status"]
    assert (status["state"], status["attempt"]) == ("Training", 1)
    deployments = runs.list("deployments", f"{labels.RUN}=long-one")
    assert {one["metadata"]["annotations"]["deployment.kubernetes.io/revision"] for one in deployments} == {"1"}


def test_a_suspended_run_has_no_servers_and_resumes_with_the_number_that_it_was_scaled_to(
    runs: Kubectl, operator: OperatorProcess
) -> None:
    runs.apply(_run("long-paused"))
    _training(runs, "long-paused")
    runs.run("patch", "gtr", "long-paused", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    eventually(lambda: _numbers(runs, "long-paused") == (1, 0), "none is left", PATIENCE)
    eventually(lambda: not runs.pods("long-paused", role="inference"), "nor its pod", PATIENCE)
    runs.run("scale", "gtr/long-paused", "--replicas=2")
    assert "role=inference" in _scale(runs, "long-paused")["status"]["selector"]
    assert runs.pods("long-paused", role="inference") == []
    runs.run("patch", "gtr", "long-paused", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    eventually(lambda: _numbers(runs, "long-paused") == (2, 2), "both are there", PATIENCE)


def test_an_ended_run_has_no_servers_and_is_scaled_in_vain(runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(_run("short"))
    runs.wait_condition("short", "Complete", PATIENCE)
    eventually(lambda: _numbers(runs, "short") == (1, 0), "none is left", PATIENCE)
    eventually(lambda: not runs.pods("short", role="inference"), "nor its pod", PATIENCE)
    runs.run("scale", "gtr/short", "--replicas=2")
    generation = runs.get("gtr", "short")["metadata"]["generation"]

    def observed() -> bool:
        return bool(runs.get("gtr", "short")["status"]["observedGeneration"] == generation)

    eventually(observed, "the operator has seen it", PATIENCE)
    assert _numbers(runs, "short") == (2, 0)
    assert runs.pods("short", role="inference") == []
    assert runs.condition("short", "Complete")["status"] == "True"


REFUSED = {
    "none": (0, "one vLLM server at least: to take all its pods away, set suspend: true"),
    "too many": (257, "spec.inference.replicas in body should be less than or equal to 256"),
    "fewer than minReplicas": (
        1,
        'spec.inference.minReplicas: Invalid value: "object": must not be more than replicas',
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_number_that_the_spec_could_not_have_is_refused(kubectl: Kubectl, case: str) -> None:
    replicas, message = REFUSED[case]
    kubectl.apply(_run("bound", replicas=4, minReplicas=2))
    with pytest.raises(KubectlError) as error:
        kubectl.run("scale", "gtr/bound", f"--replicas={replicas}")
    assert message in str(error.value)
    assert kubectl.get("gtr", "bound")["spec"]["inference"]["replicas"] == 4


def test_an_editor_may_scale_runs_and_a_viewer_may_see_their_scale() -> None:
    rules = {one["metadata"]["name"]: one["rules"] for one in render() if one["kind"] == "ClusterRole"}

    def verbs(role: str) -> set[str]:
        return {verb for rule in rules[role] if "gymtrainingruns/scale" in rule["resources"] for verb in rule["verbs"]}

    assert {"get", "update", "patch"} <= verbs("gymtrain-operator-edit-runs")
    assert "get" in verbs("gymtrain-operator-view-runs")
    assert not {"update", "patch"} & verbs("gymtrain-operator-view-runs")


def test_kubernetes_own_autoscaler_may_scale_runs(kubectl: Kubectl) -> None:
    account = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
    for verb in ("get", "update"):
        asked = ("auth", "can-i", verb, "gymtrainingruns.gymtrain.dev", "--subresource=scale", f"--as={account}")
        assert kubectl.run(*asked).strip() == "yes"


# ── servers of several pods ──────────────────────────────────────────────────────────────────────


def test_servers_of_several_pods_are_scaled_and_counted_as_groups(
    lws_controller: None, runs: Kubectl, operator: OperatorProcess
) -> None:
    runs.apply(_run("long-wide", nodes=2))
    _training(runs, "long-wide")
    before = _uids(runs, "long-wide")
    runs.run("scale", "gtr/long-wide", "--replicas=2")
    eventually(lambda: _numbers(runs, "long-wide") == (2, 2), "another group is there", PATIENCE)
    eventually(lambda: len(runs.pods("long-wide", role="inference-worker")) == 2, "each has its worker", PATIENCE)
    assert before < _uids(runs, "long-wide")
    leaders = runs.list("pods", _scale(runs, "long-wide")["status"]["selector"])
    assert sorted(pod["metadata"]["name"] for pod in leaders) == ["long-wide-vllm-0", "long-wide-vllm-1"]


# ── Kubernetes' autoscaler ───────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def metrics(cluster: ApiServer) -> Iterator[ExternalMetrics]:
    """The controller of HorizontalPodAutoscalers, and where it gets external metrics."""
    with ExternalMetrics(cluster) as served:
        cluster.start_autoscaler()
        yield served


def _autoscaler(run: str, **spec: Any) -> dict[str, Any]:
    """The example's, for another run, and one that doesn't wait before it removes servers."""
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / "hpa.yaml").read_text())
    found["metadata"]["name"] = run
    found["spec"]["scaleTargetRef"]["name"] = run
    found["spec"]["behavior"] = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    found["spec"] |= spec
    return found


def _asked(autoscaler: dict[str, Any]) -> tuple[str, int]:
    """The metric's name, and how much of it one server is to have."""
    (metric,) = autoscaler["spec"]["metrics"]
    external = metric["external"]
    return external["metric"]["name"], int(external["target"]["averageValue"])


def test_the_autoscaler_follows_the_queue_between_its_bounds(
    metrics: ExternalMetrics, runs: Kubectl, operator: OperatorProcess
) -> None:
    runs.apply(_run("long-auto"))
    _training(runs, "long-auto")
    before = _uids(runs, "long-auto")
    autoscaler = _autoscaler("long-auto", minReplicas=1, maxReplicas=4)
    name, each = _asked(autoscaler)
    metrics.values[runs.namespace, name] = 2 * each + 1
    runs.apply(autoscaler)
    eventually(lambda: _numbers(runs, "long-auto") == (3, 3), "three serve what waits", PATIENCE)
    assert before < _uids(runs, "long-auto")
    metrics.values[runs.namespace, name] = 100 * each
    eventually(lambda: _numbers(runs, "long-auto") == (4, 4), "it stops at its upper bound", PATIENCE)
    metrics.values[runs.namespace, name] = 0
    eventually(lambda: _numbers(runs, "long-auto") == (1, 1), "one is left where nothing waits", PATIENCE)
    conditions = {one["type"]: one for one in runs.get("hpa", "long-auto")["status"]["conditions"]}
    assert conditions["AbleToScale"]["status"] == "True"
    assert runs.get("gtr", "long-auto")["status"]["attempt"] == 1


def test_the_autoscaler_leaves_a_run_alone_of_which_no_metric_is_known(
    metrics: ExternalMetrics, runs: Kubectl, operator: OperatorProcess
) -> None:
    runs.apply(_run("long-mute", replicas=2))
    _training(runs, "long-mute")
    runs.apply(_autoscaler("long-mute", minReplicas=1, maxReplicas=4))

    def says_so() -> bool:
        conditions = (runs.get("hpa", "long-mute").get("status") or {}).get("conditions") or []
        return any(one["reason"] == "FailedGetExternalMetric" for one in conditions)

    eventually(says_so, "it says what it lacks", PATIENCE)
    assert _numbers(runs, "long-mute") == (2, 2)
