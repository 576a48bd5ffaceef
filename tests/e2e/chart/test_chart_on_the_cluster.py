"""The chart on the real cluster: install, upgrade, uninstall."""

import json
from typing import Any

import pytest

from tests.support.helm import Helm
from tests.support.kubectl import Kubectl, eventually, names
from tests.support.specs import smallest_run

_CRD = "gymtrainingruns.gymtrain.dev"
_KINDS = "deployments,pods,services,serviceaccounts,roles,rolebindings"


@pytest.fixture
def helm(kubeconfig: str, kubectl: Kubectl) -> Helm:
    """helm in the test's namespace, which enforces the restricted Pod Security Standard."""
    return Helm(kubeconfig, kubectl.namespace)


def _own(kubectl: Kubectl) -> list[str]:
    """The chart's objects in the namespace; the cluster puts a ServiceAccount of its own there."""
    return [name for name in names(kubectl.list(_KINDS)) if name != "ServiceAccount/default"]


def _arguments(kubectl: Kubectl) -> list[str]:
    (deployment,) = kubectl.list("deployments")
    arguments: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments


def test_a_release_for_one_namespace_installs_upgrades_and_goes(
    operator: Kubectl, kubectl: Kubectl, helm: Helm
) -> None:
    """Beside the cluster's own operator, so without the CRD; in a namespace with restricted Pod Security."""
    values = ("crds.install=false", f"watchNamespaces={{{kubectl.namespace}}}", "rbac.aggregateToUserRoles=false")
    notes = helm.upgrade("second", *values)
    assert f"watches {kubectl.namespace}" in notes
    assert f"kubectl -n {kubectl.namespace} rollout status deployment/second-gymtrain-operator" in notes
    assert kubectl.run("get", "clusterroles", "-o", "name").count("second-") == 0

    helm.upgrade("second", *values, "log.level=debug")
    assert "--log-level=debug" in _arguments(kubectl)
    eventually(lambda: len(kubectl.list("pods")) == 1, "the old pod is gone", 60)

    helm.run("uninstall", "second", "--wait")
    eventually(lambda: not _own(kubectl), "nothing of the release is left", 60)


def test_metrics_are_served_through_the_service(operator: Kubectl) -> None:
    path = f"/api/v1/namespaces/{operator.namespace}/services/gymtrain-operator-metrics:http/proxy/metrics"
    assert "gymtrain_operator_reconcile_seconds" in operator.run("get", "--raw", path)


def test_the_operators_token_is_mounted_for_the_operator_only(operator: Kubectl) -> None:
    account = operator.get("serviceaccount", "gymtrain-operator")
    assert account["automountServiceAccountToken"] is False
    (pod,) = [p for p in operator.list("pods") if p["status"]["phase"] == "Running"]
    assert pod["spec"]["automountServiceAccountToken"] is True


def _suspended_run() -> dict[str, Any]:
    return smallest_run("survivor", suspend=True)


def test_uninstalling_keeps_the_crd_and_the_runs(main_release: Helm, operator: Kubectl, kubectl: Kubectl) -> None:
    kubectl.apply(_suspended_run())
    main_release.run("uninstall", "gymtrain", "--wait")
    eventually(lambda: not operator.list("pods"), "the operator is gone", 60)
    assert kubectl.get("crd", _CRD)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert kubectl.get("gtr", "survivor")["spec"]["suspend"] is True

    kubectl.run("delete", "gtr", "survivor", "--timeout=30s")  # no finalizer waits for the operator

    kubectl.apply(_suspended_run())
    main_release.upgrade("gymtrain")  # takes back the CRD that it left
    kubectl.wait_condition("survivor", "Suspended", 60)


def test_an_upgrade_updates_the_crd(main_release: Helm, operator: Kubectl, kubectl: Kubectl) -> None:
    patch = [{"op": "remove", "path": "/spec/names/shortNames"}]
    kubectl.run("patch", "crd", _CRD, "--type=json", "-p", json.dumps(patch))
    main_release.upgrade("gymtrain", "log.format=console")
    assert kubectl.get("crd", _CRD)["spec"]["names"]["shortNames"] == ["gtr"]
