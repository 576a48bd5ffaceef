"""The api ring: a real kube-apiserver with the CRD, one for the session, and a namespace for each test."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apiserver import ApiServer, binary
from tests.support.chart import CHART, render
from tests.support.fakenode import FakeNode
from tests.support.kubectl import PATIENCE, Kubectl, eventually

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "gymtrain.dev_gymtrainingruns.yaml"
DEFAULTS_CRD = ROOT / "crds" / "gymtrain.dev_gymtrainingdefaults.yaml"
OPERATOR_NAMESPACE = "gymtrain-system"
_OPERATOR = "gymtrain-operator"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the API server."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.api)


@pytest.fixture(scope="session")
def kubectl_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A discovery cache from an earlier server on the same port would lie."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECACHEDIR", str(tmp_path_factory.mktemp("kubectl-cache")))
        yield


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory, kubectl_cache: None) -> Iterator[ApiServer]:
    """etcd and kube-apiserver with the CRD established."""
    with ApiServer(tmp_path_factory.mktemp("apiserver")) as server:
        install_crd(server)
        install_crd(server, DEFAULTS_CRD)
        yield server


@pytest.fixture
def kubectl(api_server: ApiServer) -> Kubectl:
    """kubectl in a namespace of the test's own."""
    return _in_new_namespace(api_server)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, kubectl_cache: None) -> Iterator[ApiServer]:
    """One more API server, with the real controllers and a node that plays the runs' pods."""
    with ApiServer(tmp_path_factory.mktemp("cluster")) as server:
        install_crd(server)
        install_crd(server, DEFAULTS_CRD)
        server.start_controllers()
        with FakeNode(server) as node:
            yield server
            assert node.errors == []


@pytest.fixture
def runs(cluster: ApiServer) -> Kubectl:
    """kubectl in a namespace of the test's own, of the cluster with controllers."""
    return _in_new_namespace(cluster)


@pytest.fixture(scope="module")
def operator_kubeconfig(cluster: ApiServer) -> Path:
    """The rights that the chart gives the operator, and no more."""
    admin = Kubectl(str(cluster.kubeconfig), OPERATOR_NAMESPACE, binary("kubectl"))
    admin.run("create", "namespace", OPERATOR_NAMESPACE)
    return kubeconfig_of_chart(cluster)


def kubeconfig_of_chart(server: ApiServer, chart: Path = CHART) -> Path:
    """Applies the rights that a chart gives its operator, in the namespace that is there for it."""
    admin = Kubectl(str(server.kubeconfig), OPERATOR_NAMESPACE, binary("kubectl"))
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    admin.apply(*(m for m in render(namespace=OPERATOR_NAMESPACE, chart=chart) if m["kind"] in kinds))
    token = json.loads(admin.run("create", "token", _OPERATOR, "--duration=2h", "-o", "json"))["status"]["token"]
    return server.kubeconfig_for("operator", token)


def install_crd(server: ApiServer, crd: Path = CRD) -> None:
    """Applies the CRD, and waits until it is established."""
    admin = Kubectl(str(server.kubeconfig), "default", binary("kubectl"))
    admin.run("apply", "--server-side", "-f", str(crd))
    wait = ("wait", "--for=condition=Established", "-f", str(crd))
    # kubectl fails where the object has no conditions at all yet.
    eventually(lambda: admin.run(*wait, check=False), "the CRD is established", PATIENCE)


def _in_new_namespace(server: ApiServer) -> Kubectl:
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    client = Kubectl(str(server.kubeconfig), namespace, binary("kubectl"))
    client.run("create", "namespace", namespace)
    return client
