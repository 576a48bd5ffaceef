"""Runs whose broker and agent are up, and whose vLLM and trainer never find a node: nothing disturbs the sandboxes."""

import os
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import fresh_namespace
from tests.support.kubectl import Kubectl
from tests.support.runs import make_swe_tasks
from tests.support.sandboxes import Sandboxes, idle_run

BACKEND = os.environ.get("GYMTRAIN_TEST_SANDBOX_BACKEND", "Pod")


@pytest.fixture(scope="session")
def namespace(shared_namespace: Kubectl) -> Kubectl:
    """A namespace with the tasks of examples/swe."""
    make_swe_tasks(shared_namespace)
    return shared_namespace


@pytest.fixture(scope="session")
def backend() -> str:
    """What sandboxes are made of in this round."""
    return BACKEND


@pytest.fixture(scope="session")
def boxes(operator: Kubectl, namespace: Kubectl) -> Sandboxes:
    """Sandboxes of the run `boxes`, as its agent uses them."""
    # Auto has to find out by itself that agent-sandbox is there.
    return idle_run(namespace, "boxes", backend="Auto" if BACKEND == "AgentSandbox" else BACKEND)


@pytest.fixture(scope="session")
def run(boxes: Sandboxes, namespace: Kubectl) -> Kubectl:
    """kubectl in the namespace of the run `boxes`, once it is up."""
    return namespace


@pytest.fixture(scope="module")
def baseline_namespace(kubeconfig: str) -> Iterator[Kubectl]:
    """A namespace that admits root, with the tasks of examples/swe."""
    with fresh_namespace(kubeconfig) as own:
        own.run("label", "--overwrite", "namespace", own.namespace, "pod-security.kubernetes.io/enforce=baseline")
        make_swe_tasks(own)
        yield own
