"""Commands of the documentation as its pages show them, on a real API server with the real controllers.

The pods of runs are played. Others, such as the operator's and Jaeger's, wait for a node.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.apiserver import ApiServer, binary
from tests.support.fakenode import NODE
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.operator import OperatorProcess
from tests.support.pages import yaml_blocks
from tests.support.shown import Shell, of_page, shell_of
from tests.support.specs import played_run

QUICKSTART, TUTORIAL, RUNBOOKS, UPGRADES = (
    f"docs/{name}.md" for name in ("quickstart", "tutorial", "runbooks", "upgrades")
)


@pytest.fixture
def shell(tmp_path: Path, cluster: ApiServer, runs: Kubectl) -> Shell:
    """bash for which the test's namespace is the current one."""
    return shell_of(cluster.kubeconfig, tmp_path, runs.namespace)


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def operator(operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with OperatorProcess(operator_kubeconfig, tmp_path_factory.mktemp("operator") / "operator.log") as process:
        yield process


def _watched(kubectl: Kubectl, command: str, word: str) -> list[str]:
    """The second column, for each line that a `kubectl get ... -w` prints until one has the word."""
    head, *lines = kubectl.lines_until(word, *command.split()[1:], timeout=PATIENCE)
    assert head.split()[:2] == ["NAME", "STATE"]
    return [line.split()[1] for line in lines]


def _claims(kubectl: Kubectl) -> list[str]:
    return [claim["metadata"]["name"] for claim in kubectl.list("persistentvolumeclaims")]


@pytest.mark.parametrize(("page", "run"), [("README.md", "gpu-single-node"), (QUICKSTART, "quickstart")])
def test_an_example_is_applied_watched_and_awaited(
    shell: Shell, runs: Kubectl, operator: OperatorProcess, page: str, run: str
) -> None:
    assert shell(of_page(page, f"kubectl apply -f examples/{run}.yaml")).endswith(f"/{run} created\n")
    assert _watched(runs, of_page(page, "kubectl get gtr -w"), "Complete")[-1] == "Complete"
    assert shell(of_page(page, f"kubectl wait --for=condition=Complete gtr/{run}")).endswith("condition met\n")


def test_the_quickstarts_model_is_given_another_registry(
    shell: Shell, runs: Kubectl, operator: OperatorProcess
) -> None:
    shell(of_page(QUICKSTART, "sed"))
    source = runs.get("gtr", "quickstart")["spec"]["model"]["source"]
    assert source == "oci://registry.example.com/gymtrain/model-smollm2:0.1.0"


def test_the_quickstart_finds_the_programs_and_the_cluster(shell: Shell, runs: Kubectl) -> None:
    lines = of_page(QUICKSTART, "export KUBECONFIG=$(make -s kubeconfig)", "export PATH=$(dev/run binaries")
    assert runs.namespace in shell(f"{lines}\nkubectl get namespaces")
    assert "gymtrain-system" not in shell(f"{lines}\nhelm list")


def test_the_tutorials_run_is_watched_and_its_claim_stays_until_it_is_deleted(
    shell: Shell, runs: Kubectl, operator: OperatorProcess, tmp_path: Path
) -> None:
    (run,) = yaml_blocks(TUTORIAL)
    (tmp_path / "run.yaml").write_text(run)
    shell(of_page(TUTORIAL, "kubectl apply -f run.yaml"))
    watch = of_page(TUTORIAL, "kubectl get gtr workplace-assistant -w")
    assert _watched(runs, watch, "Complete")[-1] == "Complete"
    shell(of_page(TUTORIAL, "kubectl wait", "kubectl describe gtr", "kubectl delete gtr"))
    kept = ["workplace-assistant-checkpoints"]
    eventually(lambda: _claims(runs) == kept, "the others go with the run", PATIENCE)
    shell(of_page(TUTORIAL, "kubectl delete pvc"))
    eventually(lambda: not _claims(runs), "none is left", PATIENCE)


def test_the_runbooks_look_at_a_run_and_its_pods(shell: Shell, runs: Kubectl, operator: OperatorProcess) -> None:
    runs.apply(played_run("long-sick"))
    eventually(lambda: runs.get("gtr", "long-sick").get("status", {}).get("state") == "Training", "it trains", PATIENCE)
    beginnings = "kubectl -n NAMESPACE describe", "kubectl -n NAMESPACE get pods", "kubectl -n NAMESPACE logs"
    looks = of_page(RUNBOOKS, *beginnings).replace("NAMESPACE", runs.namespace).replace("RUN", "long-sick")
    description, pods, log = (shell(look) for look in looks.splitlines())
    assert "PreflightPassed" in description
    assert "long-sick-inference" in pods
    assert log == "played\n"


def test_kubectl_finds_its_plugin_where_the_quickstart_puts_it_on_the_path(
    shell: Shell, runs: Kubectl, operator: OperatorProcess
) -> None:
    runs.apply(played_run("watched"))
    runs.wait_condition("watched", "Complete", PATIENCE)
    path = of_page(QUICKSTART, "export PATH=$PWD/.venv/bin:$PATH")
    logs = of_page(RUNBOOKS, "kubectl gymtrain -n NAMESPACE logs").replace("NAMESPACE", runs.namespace)
    assert "[trainer] watched-" in shell(f"{path}\n{logs.replace('RUN', 'watched')}")
    assert "Usage: kubectl gymtrain" in shell(f"{path}\nkubectl gymtrain --help")


# ── what runs use ────────────────────────────────────────────────────────────────────────────────


def test_a_secret_for_trackers_is_made(shell: Shell, runs: Kubectl) -> None:
    shell(of_page("docs/outputs.md", "kubectl create secret generic reporters"))
    assert set(runs.get("secret", "reporters")["data"]) == {"WANDB_API_KEY"}


def test_jaeger_has_a_service_at_the_port_that_the_run_names(shell: Shell, cluster: ApiServer, runs: Kubectl) -> None:
    shell(of_page("docs/tracing.md", "kubectl create namespace", "kubectl create deployment", "kubectl expose"))
    there = Kubectl(str(cluster.kubeconfig), "observability", binary("kubectl"))
    (service,) = there.list("services")
    assert (service["metadata"]["name"], [port["port"] for port in service["spec"]["ports"]]) == ("jaeger", [4318])
    eventually(lambda: there.list("pods", "app=jaeger"), "the Deployment makes its pod", PATIENCE)
    assert service["spec"]["selector"] == {"app": "jaeger"}


def test_argo_cds_settings_get_the_health_check_and_keep_the_rest(
    shell: Shell, cluster: ApiServer, runs: Kubectl
) -> None:
    runs.run("create", "namespace", "argocd")
    argo_cd = Kubectl(str(cluster.kubeconfig), "argocd", binary("kubectl"))
    argo_cd.run("create", "configmap", "argocd-cm", "--from-literal=url=https://argo.example.com")
    shell(of_page("docs/argo-cd.md", "kubectl patch configmap"))
    found = set(argo_cd.get("configmap", "argocd-cm")["data"])
    assert "url" in found
    assert any(key.startswith("resource.customizations.health.gymtrain.dev_GymTrainingRun") for key in found)


def test_nodes_are_asked_for_user_namespaces(shell: Shell, runs: Kubectl) -> None:
    ask = of_page("docs/sandboxes.md", "kubectl get nodes")
    assert shell(ask) == f"{NODE} \n"
    handlers = [{"name": name, "features": {"userNamespaces": name == ""}} for name in ("", "other")]
    status = json.dumps({"status": {"runtimeHandlers": handlers}})
    runs.run("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", status)
    assert shell(ask) == f"{NODE} true\n"


# ── the chart ────────────────────────────────────────────────────────────────────────────────────


def _operator(server: ApiServer, namespace: str = "gymtrain-system") -> dict[str, Any]:
    """The container of a release's operator."""
    (deployment,) = Kubectl(str(server.kubeconfig), namespace, binary("kubectl")).list("deployments")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_a_release_is_installed_upgraded_and_shares_the_cluster_with_the_next(bare: ApiServer, tmp_path: Path) -> None:
    shell = shell_of(bare.kubeconfig, tmp_path)
    upgrade = "helm upgrade gymtrain charts/gymtrain --namespace gymtrain-system --reset-then-reuse-values"
    shell(of_page("README.md", "helm install gymtrain charts/gymtrain"))
    assert _operator(bare)["image"] == "registry.example.com/gymtrain/operator:0.1.0"
    shell(of_page("docs/queueing.md", upgrade))
    shell(of_page(UPGRADES, upgrade))
    upgraded = _operator(bare)
    assert upgraded["image"] == "registry.example.com/gymtrain/operator:NEW"
    assert "--gang-scheduler=scheduler-plugins-scheduler" in upgraded["args"], "what was set before stays set"

    shell("kubectl create namespace team-a")
    label = "kubectl label namespace team-a"
    shell(of_page(UPGRADES, f"{upgrade} --set 'namespaceSelector", "helm install gymtrain-canary", label))
    assert "--namespace-selector=gymtrain notin (canary)" in _operator(bare)["args"]
    canary = _operator(bare, "gymtrain-canary")
    assert canary["image"] == upgraded["image"]
    assert "--namespace-selector=gymtrain=canary" in canary["args"]
    assert "team-a" in shell("kubectl get namespaces --selector gymtrain=canary")
