"""The api ring: a real kube-apiserver with the CRD, one for the session, and a namespace for each test."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.apiserver import ApiServer, binary
from support.kubectl import Kubectl

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "gymtrain.dev_gymtrainingruns.yaml"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the API server."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.api)


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """etcd and kube-apiserver with the CRD established."""
    folder = tmp_path_factory.mktemp("apiserver")
    with pytest.MonkeyPatch.context() as patch, ApiServer(folder) as server:
        # A discovery cache from an earlier server on the same port would lie.
        patch.setenv("KUBECACHEDIR", str(folder / "kubectl-cache"))
        admin = Kubectl(str(server.kubeconfig), "default", binary("kubectl"))
        admin.run("apply", "--server-side", "-f", str(CRD))
        admin.run("wait", "--for=condition=Established", "-f", str(CRD))
        yield server


@pytest.fixture
def kubectl(api_server: ApiServer) -> Kubectl:
    """kubectl in a namespace of the test's own."""
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    client = Kubectl(str(api_server.kubeconfig), namespace, binary("kubectl"))
    client.run("create", "namespace", namespace)
    return client
