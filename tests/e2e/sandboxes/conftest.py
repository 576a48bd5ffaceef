"""A run whose broker and agent are up, and whose vLLM and trainer never find a node: nothing disturbs the sandboxes."""

import uuid
from collections.abc import Iterator

import pytest

from tests.support.apiserver import binary
from tests.support.kubectl import Kubectl
from tests.support.runs import EXAMPLES, swe_run
from tests.support.sandboxes import AGENT, Sandboxes

NOWHERE = {"requests": {"cpu": "1000"}}


@pytest.fixture(scope="session")
def namespace(kubeconfig: str) -> Iterator[Kubectl]:
    """A namespace under restricted Pod Security, with the tasks of examples/swe."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster = Kubectl(kubeconfig, "default", binary("kubectl"))
    cluster.run("create", "namespace", name)
    cluster.run("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    own = Kubectl(kubeconfig, name, binary("kubectl"))
    own.run("create", "configmap", "swe-tasks", f"--from-file={EXAMPLES / 'swe/tasks.jsonl'}")
    yield own
    cluster.run("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def run(operator: Kubectl, namespace: Kubectl) -> Kubectl:
    """The run `boxes`."""
    run = swe_run("boxes")
    run["spec"]["inference"]["resources"] = run["spec"]["trainer"]["resources"] = NOWHERE
    run["spec"]["sandboxes"]["lookAhead"] = {"tasks": 0}
    namespace.apply(run)
    for condition in ("PreflightPassed", "SandboxesReady", "GymReady"):
        namespace.wait_condition("boxes", condition, 360)
    return namespace


@pytest.fixture(scope="session")
def boxes(run: Kubectl) -> Sandboxes:
    """Its sandboxes, as its agent uses them."""
    return Sandboxes(run, "boxes", AGENT)
