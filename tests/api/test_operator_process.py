"""The operator as a process: its start, its end, who leads, and which namespaces it looks after."""

import json
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.api.conftest import OPERATOR_NAMESPACE
from tests.support.apiserver import ApiServer, binary
from tests.support.chart import CHART
from tests.support.install import token_of_chart
from tests.support.kubectl import PATIENCE, Kubectl, eventually
from tests.support.operator import OperatorProcess
from tests.support.specs import played_run

CRD = Path(__file__).parents[2] / "crds" / "gymtrain.dev_gymtrainingruns.yaml"


def _get(process: OperatorProcess, path: str) -> int:
    """Status of one GET; 0 where nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{process.port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.fixture(scope="module")
def selecting_kubeconfig(cluster: ApiServer, operator_kubeconfig: Path) -> Path:
    """The rights of a release with a namespaceSelector."""
    values = ("namespaceSelector.matchLabels.gymtrain=canary", "crds.install=false", "admissionPolicy.create=false")
    return cluster.kubeconfig_for("canary", token_of_chart(cluster, CHART, *values, release="canary"))


def test_it_ends_in_peace_when_it_is_told_to(operator_kubeconfig: Path, tmp_path: Path) -> None:
    with OperatorProcess(operator_kubeconfig, tmp_path / "log") as process:
        process.stop(signal.SIGTERM)
        assert process.process.returncode == 0, (tmp_path / "log").read_text()[-2000:]


def test_a_standby_is_ready_and_is_handed_the_lease_by_a_leader_that_ends(
    cluster: ApiServer, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    admin = Kubectl(str(cluster.kubeconfig), OPERATOR_NAMESPACE, binary("kubectl"))
    flags = ("--leader-elect", "--lease-namespace=gymtrain-system")
    first = OperatorProcess(operator_kubeconfig, tmp_path / "first.log", *flags, "--identity=first")
    second = OperatorProcess(operator_kubeconfig, tmp_path / "second.log", *flags, "--identity=second")
    with first, second:
        eventually(lambda: first.metrics()["gymtrain_operator_leader"] == 1, "the first leads", PATIENCE)
        assert second.metrics()["gymtrain_operator_leader"] == 0
        assert _get(second, "/readyz") == 200
        first.stop(signal.SIGTERM)
        # Given back, not left to expire: its holder is nobody, or the second by now.
        assert admin.get("lease", "gymtrain-operator")["spec"]["holderIdentity"] in {"", "second"}
        eventually(lambda: second.metrics()["gymtrain_operator_leader"] == 1, "the second leads", PATIENCE, every=0.2)


def test_runs_of_other_namespaces_are_left_alone(runs: Kubectl, operator_kubeconfig: Path, tmp_path: Path) -> None:
    other = f"{runs.namespace}-other"
    runs.run("create", "namespace", other)
    with OperatorProcess(operator_kubeconfig, tmp_path / "log", f"--namespace={runs.namespace}"):
        run = played_run("bad-one")
        runs.run("apply", "--namespace", other, "-f", "-", stdin=json.dumps(run))
        runs.apply(run)
        runs.wait_condition("bad-one", "Failed", PATIENCE)
        found = json.loads(runs.run("get", "gtr", "bad-one", "--namespace", other, "-o", "json"))
        assert "status" not in found


def test_two_operators_work_at_once_each_with_its_namespace(
    cluster: ApiServer, runs: Kubectl, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    namespaces = {"first": runs.namespace, "second": f"{runs.namespace}-second"}
    runs.run("create", "namespace", namespaces["second"])
    places = {name: Kubectl(str(cluster.kubeconfig), one, binary("kubectl")) for name, one in namespaces.items()}

    def process(name: str) -> OperatorProcess:
        return OperatorProcess(operator_kubeconfig, tmp_path / name, f"--namespace={namespaces[name]}")

    def seen(operator: OperatorProcess) -> set[str]:
        return {name for name, one in namespaces.items() for line in operator.metrics() if f'namespace="{one}"' in line}

    with process("first") as first, process("second") as second:
        for place in places.values():
            place.apply(*(played_run(f"good-{number}") for number in range(3)))
        for place in places.values():
            for number in range(3):
                place.wait_condition(f"good-{number}", "Complete", PATIENCE)
        assert (seen(first), seen(second)) == ({"first"}, {"second"})


def test_runs_are_looked_after_where_the_namespace_has_the_labels(
    runs: Kubectl, selecting_kubeconfig: Path, tmp_path: Path
) -> None:
    """And as long as it has them."""

    def label(to: str) -> None:
        runs.run("label", "--overwrite", "namespace", runs.namespace, to)

    def shown() -> bool:
        return any(f'namespace="{runs.namespace}"' in name for name in process.metrics())

    with OperatorProcess(selecting_kubeconfig, tmp_path / "log", "--namespace-selector=gymtrain=canary") as process:
        runs.apply(played_run("bad-before"))
        label("gymtrain=stable")
        time.sleep(3)
        assert "status" not in runs.get("gtr", "bad-before")
        label("gymtrain=canary")
        runs.wait_condition("bad-before", "Failed", PATIENCE)
        eventually(shown, "the run is among the metrics", PATIENCE, every=0.2)

        label("gymtrain-")
        eventually(lambda: not shown(), "the run is forgotten", PATIENCE, every=0.2)
        runs.apply(played_run("bad-after"))
        time.sleep(3)
        assert "status" not in runs.get("gtr", "bad-after")


def test_a_selector_that_is_none_ends_the_operator_with_the_reason(selecting_kubeconfig: Path, tmp_path: Path) -> None:
    process = OperatorProcess(selecting_kubeconfig, tmp_path / "log", "--namespace-selector=a in b")
    process.launch()
    try:
        assert process.process.wait(PATIENCE) == 1
    finally:
        process.stop(signal.SIGTERM)
    said = (tmp_path / "log").read_text()
    assert "--namespace-selector=a in b: " in said
    assert "unable to parse requirement" in said


def test_it_waits_for_the_resource_definition(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as server:
        process = OperatorProcess(server.kubeconfig, tmp_path / "operator.log")
        starting = threading.Thread(target=process.start)
        starting.start()
        try:
            eventually(lambda: _get(process, "/readyz") == 503, "it says that it isn't ready", PATIENCE, every=0.2)
            assert _get(process, "/healthz") == 200
            kubectl = Kubectl(str(server.kubeconfig), "default", binary("kubectl"))
            kubectl.run("apply", "--server-side", "-f", str(CRD))
            eventually(lambda: _get(process, "/readyz") == 200, "it is ready", PATIENCE, every=0.2)
        finally:
            starting.join(PATIENCE)
            process.stop(signal.SIGTERM)


def test_it_ends_while_it_waits_for_the_resource_definition(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as server:
        process = OperatorProcess(server.kubeconfig, tmp_path / "operator.log")
        process.launch()
        try:
            eventually(lambda: _get(process, "/readyz") == 503, "it says that it isn't ready", PATIENCE, every=0.2)
        finally:
            process.stop(signal.SIGTERM)
        assert process.process.returncode == 0
