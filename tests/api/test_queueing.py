"""Runs in queues of Kueue on a real API server, with Kueue's own CRDs, controller and webhooks."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api import labels
from tests.api.conftest import OPERATOR_NAMESPACE
from tests.support.apiserver import ApiServer, binary
from tests.support.chart import render
from tests.support.fakenode import NODE
from tests.support.go_controller import need
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.kueue import install_kinds, local_queue, make_placing_queue, make_queues, start_controller
from tests.support.kueue_world import queued
from tests.support.operator import OperatorProcess
from tests.support.specs import played_run

_RBAC = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
# The trainer and the vLLM server ask for 2 CPUs each, everything else for half a CPU together.
_ONE_RUN, _TWO_RUNS = "6", "10"


@pytest.fixture(scope="module")
def kueue_kubeconfig(cluster: ApiServer) -> Path:
    """The rights that the chart gives with kueue.enabled, and no more."""
    admin = Kubectl(str(cluster.kubeconfig), OPERATOR_NAMESPACE, binary("kubectl"))
    admin.run("create", "namespace", OPERATOR_NAMESPACE)
    admin.apply(*(m for m in render("kueue.enabled=true", namespace=OPERATOR_NAMESPACE) if m["kind"] in _RBAC))
    made = admin.run("create", "token", "gymtrain-operator", "--duration=2h", "-o", "json")
    return cluster.kubeconfig_for("operator", json.loads(made)["status"]["token"])


@pytest.fixture(scope="module")
def operator(kueue_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator for all tests, which starts where Kueue isn't installed."""
    with OperatorProcess(kueue_kubeconfig, tmp_path_factory.mktemp("operator") / "operator.log", "--kueue") as process:
        yield process


def _run(name: str, queue: str = "team", priority: str = "", **blocks: Any) -> dict[str, Any]:
    big = {"resources": {"requests": {"cpu": "2"}}}
    blocks = {"inference": big, "trainer": big, **blocks}
    run = played_run(name, **blocks)
    run["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue}
    if priority:
        run["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority
    return run


def _message(kubectl: Kubectl, run: str, kind: str) -> str:
    return str(kubectl.condition(run, kind).get("message", ""))


def _state(kubectl: Kubectl, run: str) -> str:
    return str((kubectl.get("gtr", run).get("status") or {}).get("state", ""))


def _workload(kubectl: Kubectl, run: str) -> dict[str, Any]:
    return kubectl.get("workloads.kueue.x-k8s.io", f"gymtrainingrun-{run}")


def _conditions(kubectl: Kubectl, run: str) -> dict[str, str]:
    workloads = kubectl.list("workloads.kueue.x-k8s.io", f"{labels.RUN}={run}")
    found = [one for workload in workloads for one in (workload.get("status") or {}).get("conditions") or []]
    return {one["type"]: one["status"] for one in found}


def _cpus(workload: dict[str, Any], pod_set: str) -> list[str]:
    (found,) = [one for one in workload["spec"]["podSets"] if one["name"] == pod_set]
    return [one["resources"]["requests"]["cpu"] for one in found["template"]["spec"]["containers"]]


def _running(kubectl: Kubectl, run: str) -> list[str]:
    """Names of the run's pods, but for its preflight's."""
    pods = kubectl.list("pods", f"{labels.RUN}={run}")
    return [pod["metadata"]["name"] for pod in pods if pod["metadata"]["labels"][labels.ROLE] != labels.Role.PREFLIGHT]


# ── Kueue's kinds alone ──────────────────────────────────────────────────────────────────────────


def test_where_kueue_is_missing_preflight_says_what_to_install_and_other_runs_go_on(
    cluster: ApiServer, runs: Kubectl, operator: OperatorProcess
) -> None:
    without = _run("without")
    del without["metadata"]["labels"]
    runs.apply(_run("waits"), without)
    eventually(lambda: "Kueue" in _message(runs, "waits", "PreflightPassed"), "it says so", PATIENCE)
    message = _message(runs, "waits", "PreflightPassed")
    assert message.startswith("label kueue.x-k8s.io/queue-name: the cluster does not serve Workload")
    assert "https://kueue.sigs.k8s.io" in message
    install_kinds(cluster)  # within the minute that preflight waits for what is missing
    runs.wait_condition("waits", "PreflightPassed", PATIENCE)
    runs.wait_condition("without", "Complete", PATIENCE)
    eventually(lambda: runs.list("workloads.kueue.x-k8s.io"), "it has a Workload", PATIENCE)


def test_a_run_without_the_label_waits_in_the_queue_of_its_namespaces_defaults(
    cluster: ApiServer, runs: Kubectl, operator: OperatorProcess
) -> None:
    install_kinds(cluster)
    head = {"apiVersion": labels.API_VERSION, "kind": labels.DEFAULTS_KIND, "metadata": {"name": "default"}}
    runs.apply(head | {"spec": {"queueName": "nightly"}})
    by_default = _run("by-default")
    del by_default["metadata"]["labels"]
    runs.apply(by_default, _run("out", queue=""))
    own = ("workloads.kueue.x-k8s.io", f"{labels.RUN}=by-default")
    (workload,) = eventually(lambda: runs.list(*own), "it has a Workload", PATIENCE)
    assert workload["spec"]["queueName"] == "nightly"
    eventually(lambda: _state(runs, "by-default") == "Queued", "it waits", PATIENCE)
    assert runs.get("gtr", "by-default")["status"]["defaults"]["queueName"] == "nightly"
    # As docs/queueing.md asks.
    admitted = 'jsonpath={.status.conditions[?(@.type=="Admitted")].message}'
    assert runs.run("get", "gtr", "by-default", "-o", admitted).startswith("waits in LocalQueue nightly")
    titles, row = runs.run("get", "workloads").splitlines()
    assert titles.split() == ["NAME", "QUEUE", "RESERVED", "IN", "ADMITTED", "FINISHED", "AGE"]
    assert row.split()[:2] == ["gymtrainingrun-by-default", "nightly"]
    assert _running(runs, "by-default") == []
    runs.wait_condition("out", "Complete", PATIENCE)
    assert runs.list("workloads.kueue.x-k8s.io", f"{labels.RUN}=out") == []


def test_the_real_kind_takes_our_object_without_a_field_that_it_does_not_know(
    cluster: ApiServer, runs: Kubectl
) -> None:
    install_kinds(cluster)
    template = {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}},
        "spec": {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}},
    }
    world = queued(
        trainer={"gpus": 8, "nodes": 2, "template": template, "checkpoint": {"claimName": "c"}},
        inference={"replicas": 4, "minReplicas": 2},
        sandboxes={},
    )
    manifest = world.objects["Workload"]["gymtrainingrun-run"]
    meta = {"name": "run", "namespace": runs.namespace}
    text = json.dumps({key: manifest[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": meta})
    runs.run("create", "--validate=strict", "-f", "-", stdin=text)
    found = {one["name"]: one for one in runs.get("workloads.kueue.x-k8s.io", "run")["spec"]["podSets"]}
    assert found["trainer"]["topologyRequest"]["required"] == "rack"
    assert found["inference"]["minCount"] == 2
    assert found["trainer"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}


# ── Kueue's controller ───────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def controller(cluster: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kueue's."""
    need("kueue", "Kueue")
    install_kinds(cluster)
    start_controller(cluster, tmp_path_factory.mktemp("kueue"))


@pytest.fixture(scope="module")
def queueing(controller: None, kueue_kubeconfig: Path, operator: OperatorProcess) -> OperatorProcess:
    """The operator, which has started again since Kueue is there: it watches Workloads then."""
    operator.stop()
    operator.start()
    return operator


@pytest.fixture
def team(cluster: ApiServer, runs: Kubectl, queueing: OperatorProcess) -> Iterator[Kubectl]:
    """A namespace with a LocalQueue, and quota for one run."""
    make_queues(cluster, _ONE_RUN)
    runs.apply(local_queue("team", runs.namespace))
    yield runs
    runs.run("delete", "gtr", "--all", "--wait=false")
    eventually(lambda: not runs.list("workloads.kueue.x-k8s.io"), "the namespace holds no quota", PATIENCE)


def test_a_queued_run_is_admitted_as_a_unit_and_completes(team: Kubectl) -> None:
    team.apply(_run("first"))
    team.wait_condition("first", "Complete", PATIENCE)
    assignments = _workload(team, "first")["status"]["admission"]["podSetAssignments"]
    assert {one["name"] for one in assignments} >= {"trainer", "inference", "gateway", "gym-head"}
    assert _conditions(team, "first")["Finished"] == "True"
    assert "ClusterQueue" not in _message(team, "first", "Admitted")


def test_flavors_reach_the_pods(team: Kubectl) -> None:
    team.apply(_run("long-flavored"))
    eventually(lambda: len(_running(team, "long-flavored")) >= 6, "its pods are there", PATIENCE)
    for pod in team.list("pods", f"{labels.RUN}=long-flavored"):
        preflight = pod["metadata"]["labels"][labels.ROLE] == labels.Role.PREFLIGHT
        assert pod["spec"].get("nodeSelector") == (None if preflight else {"pool": "h100"})
        assert ("gpu" in {one.get("key") for one in pod["spec"].get("tolerations") or []}) is not preflight


def test_kueue_hears_that_the_pods_are_ready(team: Kubectl) -> None:
    team.apply(_run("long-ready"))
    eventually(lambda: _conditions(team, "long-ready").get("PodsReady") == "True", "Kueue knows it", PATIENCE)
    assert _conditions(team, "long-ready")["Admitted"] == "True"


def test_a_second_run_waits_without_pods_until_the_first_has_ended(team: Kubectl) -> None:
    team.apply(_run("long-one"))
    eventually(lambda: _state(team, "long-one") == "Training", "the first trains", PATIENCE)
    team.apply(_run("two"))
    eventually(lambda: "insufficient unused quota" in _message(team, "two", "Admitted"), "it says why", PATIENCE)
    assert _state(team, "two") == "Queued"
    assert _running(team, "two") == []
    uid = _workload(team, "two")["metadata"]["uid"]
    less = {"spec": {"trainer": {"resources": {"requests": {"cpu": "1"}}}}}
    team.run("patch", "gtr", "two", "--type=merge", "-p", json.dumps(less))
    eventually(lambda: _cpus(_workload(team, "two"), "trainer") == ["1"], "it asks for less", PATIENCE)
    assert _workload(team, "two")["metadata"]["uid"] == uid  # it keeps its place
    team.run("delete", "gtr", "long-one")
    team.wait_condition("two", "Complete", PATIENCE)


def test_an_urgent_run_takes_the_quota_and_the_other_goes_on_afterwards(team: Kubectl) -> None:
    team.apply(_run("long-low", priority="ordinary"))
    eventually(lambda: _state(team, "long-low") == "Training", "the first trains", PATIENCE)
    team.apply(_run("high", priority="urgent"))
    team.wait_condition("high", "Complete", PATIENCE)
    eventually(lambda: _state(team, "long-low") == "Training", "the first trains again", PATIENCE)
    status = team.get("gtr", "long-low")["status"]
    assert (status["attempt"], status.get("disruptedAttempts") or []) == (1, [])
    reasons = [one["reason"] for one in team.list("events") if one["involvedObject"]["name"] == "long-low"]
    assert "Evicted" in reasons


def test_a_deactivated_workload_stops_the_run_and_an_active_one_lets_it_go_on(team: Kubectl) -> None:
    team.apply(_run("long-switched"))
    eventually(lambda: _state(team, "long-switched") == "Training", "it trains", PATIENCE)
    name = ("workloads.kueue.x-k8s.io", "gymtrainingrun-long-switched", "--type=merge", "-p")
    team.run("patch", *name, '{"spec": {"active": false}}')
    eventually(lambda: not _running(team, "long-switched"), "it has no pods", PATIENCE)
    eventually(
        lambda: _conditions(team, "long-switched").get("QuotaReserved") == "False", "its quota is free", PATIENCE
    )
    eventually(lambda: "Deactivated" in _message(team, "long-switched", "Admitted"), "it says so", PATIENCE)
    team.run("patch", *name, '{"spec": {"active": true}}')
    eventually(lambda: _state(team, "long-switched") == "Training", "it trains again", PATIENCE)


def test_a_suspended_run_frees_its_quota(team: Kubectl) -> None:
    team.apply(_run("long-suspended"))
    eventually(lambda: _state(team, "long-suspended") == "Training", "it trains", PATIENCE)
    team.run("patch", "gtr", "long-suspended", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    team.apply(_run("next"))
    team.wait_condition("next", "Complete", PATIENCE)
    team.run("patch", "gtr", "long-suspended", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    eventually(lambda: _state(team, "long-suspended") == "Training", "it trains again", PATIENCE)


def test_fewer_vllm_servers_are_admitted_where_the_run_allows_that(team: Kubectl) -> None:
    wide = {"replicas": 4, "minReplicas": 1, "resources": {"requests": {"cpu": "1"}}}
    team.apply(_run("narrowed", inference=wide))
    team.wait_condition("narrowed", "Complete", PATIENCE)
    assignments = _workload(team, "narrowed")["status"]["admission"]["podSetAssignments"]
    (inference,) = [one for one in assignments if one["name"] == "inference"]
    assert 1 <= inference["count"] < 4


def test_a_queued_run_scales_within_what_it_was_admitted_with(team: Kubectl) -> None:
    team.apply(_run("long-scaled", inference={"replicas": 2, "resources": {"requests": {"cpu": "1"}}}))
    eventually(lambda: _state(team, "long-scaled") == "Training", "it trains", PATIENCE)
    uid = _workload(team, "long-scaled")["metadata"]["uid"]

    def servers() -> int:
        return int(team.get("gtr", "long-scaled")["status"]["inference"]["replicas"])

    team.run("scale", "gtr/long-scaled", "--replicas=3")
    waits = "inference runs with 2 of 3 replicas"
    eventually(lambda: waits in _message(team, "long-scaled", "Admitted"), "it says what it waits for", PATIENCE)
    assert servers() == 2
    for replicas in (1, 2):
        team.run("scale", "gtr/long-scaled", f"--replicas={replicas}")
        eventually(lambda wanted=replicas: servers() == wanted, f"it has {replicas}", PATIENCE)  # type: ignore[misc]
    workload = _workload(team, "long-scaled")
    assert workload["metadata"]["uid"] == uid
    counts = {one["name"]: one["count"] for one in workload["status"]["admission"]["podSetAssignments"]}
    assert counts["inference"] == 2, "its quota stays reserved"
    assert _state(team, "long-scaled") == "Training"


def test_kueue_chooses_the_nodes_of_the_pods(cluster: ApiServer, team: Kubectl) -> None:
    make_placing_queue(cluster, NODE)
    team.apply(local_queue("placed", team.namespace, "placed"))
    required = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "kubernetes.io/hostname"}}}
    team.apply(_run("placed", queue="placed", trainer={"template": required}))
    team.wait_condition("placed", "Complete", PATIENCE)
    (pod,) = team.pods("placed", role="trainer")
    assert pod["spec"]["nodeSelector"] == {"pool": "placed", "kubernetes.io/hostname": NODE}
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "trainer"


def test_a_queue_that_does_not_exist_is_named(team: Kubectl) -> None:
    team.apply(_run("astray", queue="nowhere"))
    eventually(lambda: "nowhere" in _message(team, "astray", "Admitted"), "it says so", PATIENCE)
    eventually(lambda: "exist" in _message(team, "astray", "Admitted"), "Kueue's words are there", PATIENCE)


def test_a_priority_class_that_does_not_exist_is_named_before_preflight(team: Kubectl) -> None:
    team.apply(_run("odd", priority=f"p{uuid.uuid4().hex[:6]}"))
    eventually(lambda: "WorkloadPriorityClass" in _message(team, "odd", "PreflightPassed"), "it says so", PATIENCE)
    assert _message(team, "odd", "PreflightPassed").endswith("not found")
