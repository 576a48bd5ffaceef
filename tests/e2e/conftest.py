"""The real cluster, with the operator installed by its chart, and a namespace per test."""

import fcntl
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.support.apiserver import binary
from tests.support.command_line import Gymtrain
from tests.support.helm import Helm
from tests.support.kubectl import Kubectl

OPERATOR_NAMESPACE = "gymtrain-system"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.e2e)
    # The longest first: one that begins last keeps a worker busy while the other has nothing left to do.
    items.sort(key=lambda item: item.path.name != "test_trainer_image.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """The tests of sandboxes share a run, so one worker has them all; any other goes to whoever is free."""
    return _Scheduling(config, log)


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # the library has no types
    def _split_scope(self, nodeid: str) -> str:
        shared = "tests/e2e/sandboxes/"
        return shared if nodeid.startswith(shared) else nodeid


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    path = os.environ.get("KUBECONFIG")
    if not path:
        pytest.fail("KUBECONFIG is not set: run `make test-e2e`, or set it to a cluster that holds the images")
    return path


@pytest.fixture(scope="session")
def operator(kubeconfig: str) -> Kubectl:
    """The operator, installed as a user would; returns kubectl in its namespace."""
    with Path(kubeconfig).open() as one_at_a_time:  # helm refuses a second upgrade beside its own
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        _install(kubeconfig)
    return Kubectl(kubeconfig, OPERATOR_NAMESPACE, binary("kubectl"))


def _install(kubeconfig: str) -> None:
    subprocess.run(["dev/install.sh"], check=True, timeout=400, env={**os.environ, "KUBECONFIG": kubeconfig})


@pytest.fixture
def main_release(operator: Kubectl, kubeconfig: str) -> Iterator[Helm]:
    """helm for the cluster's own release, which is installed again afterwards whatever happened: for tests that run
    beside no other."""
    yield Helm(kubeconfig, operator.namespace)
    _install(kubeconfig)


@contextmanager
def fresh_namespace(kubeconfig: str) -> Iterator[Kubectl]:
    """A namespace under restricted Pod Security, deleted in the end."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster = Kubectl(kubeconfig, "default", binary("kubectl"))
    cluster.run("create", "namespace", name)
    cluster.run("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield Kubectl(kubeconfig, name, binary("kubectl"))
    # What is left is checked by the tests themselves; the next one need not wait for this one's pods.
    cluster.run("delete", "namespace", name, "--wait=false")


@pytest.fixture
def kubectl(kubeconfig: str) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own, under restricted Pod Security, deleted afterwards."""
    with fresh_namespace(kubeconfig) as own:
        yield own


@pytest.fixture
def gymtrain(kubeconfig: str, kubectl: Kubectl) -> Gymtrain:
    """The command line in the test's namespace."""
    return Gymtrain(kubeconfig, kubectl.namespace)


@pytest.fixture(scope="session")
def shared_namespace(kubeconfig: str) -> Iterator[Kubectl]:
    """The same for tests that share one."""
    with fresh_namespace(kubeconfig) as own:
        yield own
