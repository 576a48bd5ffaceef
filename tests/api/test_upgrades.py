"""From the last release to this one and back, while runs go on: with that release's own operator, chart and CRD."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import OPERATOR_NAMESPACE, ROOT, install_crd, kubeconfig_of_chart
from tests.support.apiserver import ApiServer, binary
from tests.support.chart import CHART
from tests.support.fakenode import FakeNode
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.operator import OperatorProcess
from tests.support.releases import last_release
from tests.support.specs import played_run

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

    def operator(self, name: str) -> OperatorProcess:
        """Its operator, with the rights of its chart."""
        for crd in sorted((self._root / "crds").glob("*.yaml")):
            install_crd(self._cluster, crd)
        kubeconfig = kubeconfig_of_chart(self._cluster, self._root / CHART.relative_to(ROOT))
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
    return played_run(name, **{"trainer": {"checkpoint": {"size": "1Gi"}}, **spec})


def _state(kubectl: Kubectl, run: str) -> str:
    return str(kubectl.get("gtr", run).get("status", {}).get("state", ""))


def _written(kubectl: Kubectl, *runs: str) -> dict[str, tuple[str, Any]]:
    """UID and pod template of all objects of some runs."""
    found = {}
    for item in kubectl.list(_WITH_TEMPLATES):
        meta = item["metadata"]
        if meta.get("labels", {}).get("gymtrain.dev/run") in runs:
            found[f"{item['kind']}/{meta['name']}"] = (meta["uid"], item.get("spec", {}).get("template"))
    return found


def _goes_on(kubectl: Kubectl, *runs: str) -> None:
    """Waits until each run has made more steps than it takes to write its objects again."""

    def steps(run: str) -> int:
        return int(kubectl.get("gtr", run)["status"]["progress"]["step"])

    before = {run: steps(run) for run in runs}
    eventually(lambda: all(steps(run) > before[run] + 8 for run in runs), "the runs go on", PATIENCE)


def test_runs_go_on_from_the_last_release_to_this_one_and_back(server: ApiServer, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "sitecustomize.py").write_text(_IMPATIENT)
    old, new = Release(server, last_release(tmp_path / "old"), logs), Release(server, ROOT, logs)
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
        assert _written(runs, "long-one") == first
        runs.run("patch", "gtr", "paused", "--type=merge", "-p", '{"spec": {"suspend": false}}')
        runs.apply(_run("long-two"), _run("later"))
        for run in ("paused", "later"):
            runs.wait_condition(run, "Complete", PATIENCE)
        eventually(lambda: _state(runs, "long-two") == "Training", "a run of this release trains", PATIENCE)
        assert runs.get("gtr", "good")["status"] == ended
        assert operator.errors() == {}
        second = _written(runs, "long-one", "long-two")

    with old.operator("back") as operator:
        _goes_on(runs, "long-one", "long-two")
        assert _written(runs, "long-one", "long-two") == second
        assert operator.errors() == {}
