"""Defaults of cluster and namespace, with the real operator, API server and controllers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.defaults import Roles, RunDefaults
from tests.support.chart import CHART, helm, render
from tests.support.kubectl import PATIENCE, Kubectl, KubectlError, eventually
from tests.support.operator import OperatorProcess
from tests.support.specs import played_run

GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture
def operator(operator_kubeconfig: Path, tmp_path: Path) -> Iterator[OperatorProcess]:
    """One operator with a default for all namespaces."""
    flags = ("--defaults", json.dumps({"ttlSecondsAfterFinished": 3600, "nodeSelector": {"zone": "a"}}))
    with OperatorProcess(operator_kubeconfig, tmp_path / "operator.log", *flags) as process:
        yield process


def _defaults(name: str = "default", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gymtrain.dev/v1alpha1",
        "kind": "GymTrainingDefaults",
        "metadata": {"name": name},
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        (_defaults("mine"), "metadata.name: Invalid value"),
        (_defaults(tolerations=[{"effect": "Never"}]), 'spec.tolerations[0].effect: Unsupported value: "Never"'),
        (_defaults(tolerationz=[]), 'unknown field "spec.tolerationz"'),
        (_defaults(roles={"trainers": {}}), 'unknown field "spec.roles.trainers"'),
        (_defaults(ttlSecondsAfterFinished=-1), "spec.ttlSecondsAfterFinished: Invalid value: -1"),
        (_defaults(gpuResourceName="gpu"), "gpu must be an extended resource such as nvidia.com/gpu or amd.com/gpu"),
        (_defaults(images={"gym": "a b"}), "a b must be an image name"),
        (_defaults(caBundle={"key": "a"}), "spec.caBundle.configMap: Required value"),
        (_defaults(env=[{"name": "A"}, {"name": "A"}]), 'spec.env[1]: Duplicate value: {"name":"A"}'),
    ],
)
def test_a_mistake_is_named_when_it_is_applied(kubectl: Kubectl, defaults: dict[str, Any], said: str) -> None:
    with pytest.raises(KubectlError) as refused:
        kubectl.apply(defaults)
    assert said in str(refused.value)


def test_all_fields_are_accepted(kubectl: Kubectl) -> None:
    pods: dict[str, Any] = {
        "nodeSelector": {"a": "b"},
        "tolerations": [GPU | {"tolerationSeconds": 1}],
        "runtimeClassName": "x",
    }
    role = pods | {"resources": {"requests": {"cpu": "1"}}}
    main = dict.fromkeys(("gym", "gateway", "inference", "trainer", "broker"), role)
    kubectl.apply(
        _defaults(
            **pods,
            roles=main | {"preflight": pods, "sandbox": pods},
            imagePullSecrets=[{"name": "registry"}],
            env=[{"name": "A", "value": "1"}],
            proxy={"http": "http://p", "https": "http://p", "noProxy": ["10.0.0.0/8"]},
            caBundle={"configMap": "trusted", "key": "k"},
            storageClassName="fast",
            ttlSecondsAfterFinished=60,
            images={"gym": "r.example.com/gym@sha256:" + "0" * 64},
            gpuResourceName="amd.com/gpu",
            userIds="Assigned",
            dns={"namespace": "dns", "podLabels": {"a": "b"}, "cidrs": ["169.254.20.10/32"], "ports": [53]},
        )
    )


def test_a_namespaces_defaults_reach_its_runs_and_later_ones_restart_nothing(
    runs: Kubectl, operator: OperatorProcess
) -> None:
    runs.apply(_defaults(tolerations=[GPU]), played_run("long-one"))
    runs.wait_condition("long-one", "GymReady", PATIENCE)
    before = {pod["metadata"]["uid"]: pod["spec"] for pod in runs.pods("long-one")}
    assert all(GPU in pod["tolerations"] and pod["nodeSelector"] == {"zone": "a"} for pod in before.values())
    status = runs.get("gtr", "long-one")["status"]["defaults"]
    assert status == {"nodeSelector": {"zone": "a"}, "tolerations": [GPU], "ttlSecondsAfterFinished": 3600}

    runs.apply(_defaults(nodeSelector={"zone": "b"}), played_run("long-later"))
    runs.wait_condition("long-later", "GymReady", PATIENCE)
    assert all(pod["spec"]["nodeSelector"] == {"zone": "b"} for pod in runs.pods("long-later"))
    assert runs.get("gtr", "long-one")["status"]["defaults"] == status
    after = {pod["metadata"]["uid"]: pod["spec"] for pod in runs.pods("long-one")}
    assert {uid: after[uid] for uid in before} == before
    assert all(pod["nodeSelector"] == {"zone": "a"} for pod in after.values())


def test_a_run_completes_where_a_quota_requires_limits(runs: Kubectl, operator: OperatorProcess) -> None:
    hard = {
        f"{kind}.{name}": amount
        for kind in ("requests", "limits")
        for name, amount in (("cpu", "40"), ("memory", "80Gi"))
    }
    runs.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": hard}})
    eventually(lambda: runs.get("resourcequota", "team").get("status", {}).get("hard"), "the quota counts", PATIENCE)
    runs.apply(played_run("quota", sandboxes={"backend": "Pod"}))
    runs.wait_condition("quota", "Complete", PATIENCE)
    status = runs.get("gtr", "quota")["status"]
    assert status["defaults"]["requiredLimits"] == ["cpu", "memory"]


# ── the chart ─────────────────────────────────────────────────────────────────────────────────────


def _arguments(*values: str) -> list[str]:
    (deployment,) = (one for one in render(*values) if one["kind"] == "Deployment")
    arguments: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return [argument for argument in arguments if argument.startswith("--defaults")]


def test_the_chart_hands_its_defaults_to_the_operator() -> None:
    assert _arguments() == []
    (argument,) = _arguments("defaults.ttlSecondsAfterFinished=604800", "defaults.roles.trainer.nodeSelector.pool=h100")
    assert json.loads(argument.removeprefix("--defaults=")) == {
        "ttlSecondsAfterFinished": 604800,
        "roles": {"trainer": {"nodeSelector": {"pool": "h100"}}},
    }


def test_the_chart_refuses_a_default_that_is_none() -> None:
    sets = ("--set", "imageRegistry=r.example.com/", "--set", "defaults.tolerationz=1")
    done = helm("template", "gymtrain", str(CHART), "--kube-version", "1.34", *sets)
    assert done.returncode != 0
    assert "tolerationz" in done.stderr


def test_the_chart_knows_all_defaults() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["defaults"]["properties"]
    assert set(schema) == {str(field.alias) for field in RunDefaults.model_fields.values()}
    assert set(schema["roles"]["properties"]) == {str(field.alias) for field in Roles.model_fields.values()}


def test_an_editor_reads_defaults_and_an_administrator_writes_them() -> None:
    rules = {one["metadata"]["name"]: one for one in render() if one["kind"] == "ClusterRole"}
    writing = rules["gymtrain-operator-edit-defaults"]["metadata"]["labels"]
    assert "rbac.authorization.k8s.io/aggregate-to-admin" in writing
    assert "rbac.authorization.k8s.io/aggregate-to-edit" not in writing
    reading = rules["gymtrain-operator-view-runs"]["rules"][0]
    assert (reading["resources"], reading["verbs"]) == (
        ["gymtrainingruns", "gymtrainingdefaults"],
        ["get", "list", "watch"],
    )
