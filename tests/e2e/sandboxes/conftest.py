"""A run whose broker and agent are up, and whose vLLM and trainer never find a node: nothing disturbs the sandboxes."""

import os

import pytest

from tests.support.kubectl import Kubectl
from tests.support.runs import NOWHERE, make_swe_tasks, swe_run
from tests.support.sandboxes import AGENT, Sandboxes

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
def run(operator: Kubectl, namespace: Kubectl) -> Kubectl:
    """The run `boxes`."""
    run = swe_run("boxes")
    run["spec"]["inference"]["resources"] = run["spec"]["trainer"]["resources"] = NOWHERE
    # Auto has to find out by itself that agent-sandbox is there.
    run["spec"]["sandboxes"] |= {"lookAhead": {"tasks": 0}, "backend": "Auto" if BACKEND == "AgentSandbox" else BACKEND}
    namespace.apply(run)
    for condition in ("PreflightPassed", "SandboxesReady", "GymReady"):
        namespace.wait_condition("boxes", condition, 360)
    return namespace


@pytest.fixture(scope="session")
def boxes(run: Kubectl) -> Sandboxes:
    """Its sandboxes, as its agent uses them."""
    return Sandboxes(run, "boxes", AGENT)
