"""vLLM servers of several pods on a real API server, with LeaderWorkerSet's own CRD, controller and webhooks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api import labels
from tests.support.apiserver import ApiServer
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.lws import install_kinds
from tests.support.operator import OperatorProcess
from tests.support.specs import played_run
from tests.support.world import World


@pytest.fixture(scope="module")
def operator(operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator for all tests, which starts where LWS isn't installed."""
    with OperatorProcess(operator_kubeconfig, tmp_path_factory.mktemp("operator") / "operator.log") as process:
        yield process


def _run(name: str, nodes: int = 2, **inference: Any) -> dict[str, Any]:
    return played_run(name, inference={"nodes": nodes, **inference})


def _message(kubectl: Kubectl, run: str, kind: str) -> str:
    conditions = (kubectl.get("gtr", run).get("status") or {}).get("conditions") or []
    return next((str(one["message"]) for one in conditions if one["type"] == kind), "")


def test_where_lws_is_missing_preflight_says_what_to_install_and_other_runs_go_on(
    cluster: ApiServer, runs: Kubectl, operator: OperatorProcess
) -> None:
    runs.apply(_run("wide"), _run("narrow", nodes=1))
    eventually(lambda: "LeaderWorkerSet" in _message(runs, "wide", "PreflightPassed"), "it says so", PATIENCE)
    message = _message(runs, "wide", "PreflightPassed")
    assert message.startswith("spec.inference.nodes: the cluster does not serve LeaderWorkerSet")
    assert "https://lws.sigs.k8s.io" in message
    install_kinds(cluster)  # within the minute that preflight waits for what is missing
    runs.wait_condition("wide", "PreflightPassed", PATIENCE)
    runs.wait_condition("narrow", "Complete", PATIENCE)


def test_the_real_kind_takes_our_object_without_a_field_that_it_does_not_know(
    cluster: ApiServer, runs: Kubectl
) -> None:
    install_kinds(cluster)
    world = World(inference={"nodes": 2, "replicas": 2, "gpus": 8, "compileCache": {"claimName": "kept"}}).to_servers()
    manifest = world.objects["LeaderWorkerSet"]["run-vllm"]
    meta = {"name": "run-vllm", "namespace": runs.namespace, "labels": manifest["metadata"]["labels"]}
    text = json.dumps(
        {"apiVersion": manifest["apiVersion"], "kind": "LeaderWorkerSet", "metadata": meta} | {"spec": manifest["spec"]}
    )
    runs.run("create", "--validate=strict", "-f", "-", stdin=text)
    found = runs.get("leaderworkersets", "run-vllm")["spec"]
    assert found["leaderWorkerTemplate"]["size"] == 2
    assert found["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"


def _pods(kubectl: Kubectl, run: str, role: labels.Role) -> list[dict[str, Any]]:
    return kubectl.list("pods", f"{labels.RUN}={run},{labels.ROLE}={role}")


def test_a_run_with_servers_of_two_pods_completes(
    lws_controller: None, runs: Kubectl, operator: OperatorProcess
) -> None:
    runs.apply(_run("long-pair", replicas=2))
    eventually(lambda: len(_pods(runs, "long-pair", labels.Role.INFERENCE_WORKER)) == 2, "both have a worker", PATIENCE)
    leaders = _pods(runs, "long-pair", labels.Role.INFERENCE)
    assert sorted(pod["metadata"]["name"] for pod in leaders) == ["long-pair-vllm-0", "long-pair-vllm-1"]
    (worker,) = [p for p in _pods(runs, "long-pair", labels.Role.INFERENCE_WORKER) if "vllm-1" in p["metadata"]["name"]]
    env = {one["name"]: one.get("value") for one in worker["spec"]["containers"][0]["env"]}
    assert env["LWS_WORKER_INDEX"] == "1"
    assert env["LWS_LEADER_ADDRESS"] == f"long-pair-vllm-1.long-pair-vllm.{runs.namespace}"
    runs.wait_condition("long-pair", "InferenceReady", PATIENCE)
    suspend = '{"spec": {"suspend": true}}'
    runs.run("patch", "gtr", "long-pair", "--type=merge", "-p", suspend)
    eventually(lambda: not _all_pods(runs, "long-pair"), "its groups are gone", PATIENCE)


def _all_pods(kubectl: Kubectl, run: str) -> list[dict[str, Any]]:
    return kubectl.list("pods", f"{labels.RUN}={run}")


def test_an_ended_run_leaves_no_pod_of_a_group(lws_controller: None, runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(_run("short"))
    runs.wait_condition("short", "Complete", PATIENCE)
    workers = labels.Role.INFERENCE_WORKER
    eventually(
        lambda: not _pods(runs, "short", workers) and not runs.list("leaderworkersets"), "none is left", PATIENCE
    )
