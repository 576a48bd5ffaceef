"""From the last release to this one and back, while runs go on: with that release's own operator, chart and CRD."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import OPERATOR_NAMESPACE, install_crd
from tests.support.apiserver import ApiServer, binary
from tests.support.chart import CHART, render
from tests.support.fakenode import FakeNode
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.operator import OperatorProcess
from tests.support.releases import last_release
from tests.support.specs import smallest_run

_ROOT = Path(__file__).parents[2]
_RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
_WITH_TEMPLATES = "deployments,statefulsets,jobs,pods,services,networkpolicies,configmaps,persistentvolumeclaims"
_NAMESPACE = "research"
# All objects of a run are written again each ten minutes, in case somebody edited them. Here within the test.
_IMPATIENT = """
from gymtrain_operator import reconciler

assert reconciler._RESYNC_SECONDS
reconciler._RESYNC_SECONDS = 3.0
"""


class Release:
    """One release of gymtrain, installed as Helm does: first the CRD, then the rights, then the operator."""

    def __init__(self, cluster: ApiServer, root: Path, logs: Path) -> None:
        self._cluster, self._root, self._logs = cluster, root, logs
        (logs / "sitecustomize.py").write_text(_IMPATIENT)

    def operator(self, name: str) -> OperatorProcess:
        """Its operator, with the rights of its chart."""
        admin = Kubectl(str(self._cluster.kubeconfig), OPERATOR_NAMESPACE, binary("kubectl"))
        for crd in sorted((self._root / "crds").glob("*.yaml")):
            install_crd(self._cluster, crd)
        chart = self._root / CHART.relative_to(_ROOT)
        admin.apply(*(m for m in render(namespace=OPERATOR_NAMESPACE, chart=chart) if m["kind"] in _RIGHTS))
        account = json.loads(admin.run("create", "token", "gymtrain-operator", "--duration=2h", "-o", "json"))
        kubeconfig = self._cluster.kubeconfig_for("operator", account["status"]["token"])
        source = self._root / "operator"
        return OperatorProcess(kubeconfig, self._logs / f"{name}.log", source=source, preload=self._logs)


@pytest.fixture
def server(tmp_path: Path, kubectl_cache: None) -> Iterator[ApiServer]:
    """A cluster without a CRD of ours."""
    (tmp_path / "cluster").mkdir()
    with ApiServer(tmp_path / "cluster") as found:
        found.start_controllers()
        with FakeNode(found) as node:
            yield found
            assert node.errors == []


def _run(name: str, **spec: Any) -> dict[str, Any]:
    run = smallest_run(name, **{"trainer": {"checkpoint": {"size": "1Gi"}}, **spec})
    run["spec"]["data"] = {"train": [{"source": "gym://data/example.jsonl"}]}
    return run


def _state(kubectl: Kubectl, run: str) -> str:
    return str(kubectl.get("gtr", run).get("status", {}).get("state", ""))


def _written(kubectl: Kubectl, *runs: str) -> dict[str, tuple[str, int, Any]]:
    """UID, generation and pod template of all objects of some runs."""
    found = {}
    for item in kubectl.list(_WITH_TEMPLATES):
        meta = item["metadata"]
        if meta.get("labels", {}).get("gymtrain.dev/run") in runs:
            template = item.get("spec", {}).get("template")
            found[f"{item['kind']}/{meta['name']}"] = (meta["uid"], meta.get("generation", 0), template)
    return found


def _goes_on(kubectl: Kubectl, *runs: str) -> None:
    """Waits until each run has made more steps than it takes to write its objects again."""

    def steps(run: str) -> int:
        return int(kubectl.get("gtr", run)["status"]["progress"]["step"])

    before = {run: steps(run) for run in runs}
    eventually(lambda: all(steps(run) > before[run] + 8 for run in runs), "the runs go on", PATIENCE)


def _templates(written: dict[str, tuple[str, int, Any]]) -> dict[str, tuple[str, Any]]:
    """Without generations: what is no pod may be written."""
    return {name: (uid, template) for name, (uid, _, template) in written.items()}


def test_runs_go_on_from_the_last_release_to_this_one_and_back(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    old = Release(server, last_release(tmp_path / "old"), tmp_path / "logs")
    new = Release(server, _ROOT, tmp_path / "logs")
    admin = Kubectl(str(server.kubeconfig), OPERATOR_NAMESPACE, binary("kubectl"))
    admin.run("create", "namespace", OPERATOR_NAMESPACE)
    admin.run("create", "namespace", _NAMESPACE)
    runs = Kubectl(str(server.kubeconfig), _NAMESPACE, binary("kubectl"))

    with old.operator("old"):
        runs.apply(_run("long-one"), _run("good"), _run("paused", suspend=True))
        runs.wait_condition("good", "Complete", PATIENCE)
        eventually(lambda: _state(runs, "long-one") == "Training", "a run trains", PATIENCE)
        ended = runs.get("gtr", "good")["status"]
        first = _written(runs, "long-one")

    with new.operator("new") as operator:
        _goes_on(runs, "long-one")
        assert _templates(_written(runs, "long-one")) == _templates(first)
        runs.run("patch", "gtr", "paused", "--type=merge", "-p", '{"spec": {"suspend": false}}')
        runs.apply(_run("long-two"), _run("later"))
        for run in ("paused", "later"):
            runs.wait_condition(run, "Complete", PATIENCE)
        eventually(lambda: _state(runs, "long-two") == "Training", "a run of this release trains", PATIENCE)
        assert runs.get("gtr", "good")["status"] == ended
        assert operator.metrics().get("gymtrain_operator_reconcile_errors_total", 0) == 0
        second = _written(runs, "long-one", "long-two")

    with old.operator("back") as operator:
        _goes_on(runs, "long-one", "long-two")
        assert _templates(_written(runs, "long-one", "long-two")) == _templates(second)
        assert operator.metrics().get("gymtrain_operator_reconcile_errors_total", 0) == 0
