"""The api ring: a real kube-apiserver with the CRD, one for the session, and a namespace for each test."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import lws
from tests.support.apiserver import ApiServer, binary
from tests.support.chart import CHART
from tests.support.fakenode import FakeNode
from tests.support.go_controller import need
from tests.support.install import CRD as CRD
from tests.support.install import DEFAULTS_CRD as DEFAULTS_CRD
from tests.support.install import OPERATOR_NAMESPACE as OPERATOR_NAMESPACE
from tests.support.install import ROOT as ROOT
from tests.support.install import install_crd as install_crd
from tests.support.install import token_of_chart
from tests.support.kubectl import Kubectl

# A process has all tests of a file, and one that begins a long file last keeps the others waiting for it.
_LONGEST = (
    "test_operator_care.py",
    "test_scale.py",
    "test_failover.py",
    "test_whole_runs.py",
    "test_starved_operator.py",
    "test_operator_process.py",
    "test_upgrades.py",
    "test_shown_commands.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the API server. The longest files first."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.api)
    rank = {name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


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
def bare(tmp_path_factory: pytest.TempPathFactory, kubectl_cache: None) -> Iterator[ApiServer]:
    """An API server of the test's own with the real controllers, on which nothing of ours was ever installed."""
    with ApiServer(tmp_path_factory.mktemp("bare")) as server:
        server.start_controllers()
        yield server


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


@pytest.fixture(scope="module")
def lws_controller(cluster: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    """LeaderWorkerSet's kinds and its controller, on the cluster with controllers."""
    need("lws", "LWS")
    lws.install_kinds(cluster)
    lws.start_controller(cluster, tmp_path_factory.mktemp("lws"))


def kubeconfig_of_chart(server: ApiServer, chart: Path = CHART) -> Path:
    """With the rights that a chart gives its operator, which are applied."""
    return server.kubeconfig_for("operator", token_of_chart(server, chart))


def _in_new_namespace(server: ApiServer) -> Kubectl:
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    client = Kubectl(str(server.kubeconfig), namespace, binary("kubectl"))
    client.run("create", "namespace", namespace)
    return client
