"""Pods for the tests of the cluster itself: no image of this project, no operator."""

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.apiserver import binary
from tests.support.kubectl import Kubectl
from tests.support.restricted import restricted_spec

# Any image with python3.13. The dev cluster's own base has it; the official one does not.
IMAGE = os.environ.get("GYMTRAIN_TEST_IMAGE", "debian:trixie-slim")


@pytest.fixture(scope="session")
def session_label(kubeconfig: str) -> Iterator[str]:
    """A label for all namespaces of this session, whose removal is awaited once, at the end."""
    label = f"gymtrain.dev/test-session={uuid.uuid4().hex[:8]}"
    yield label
    cluster = Kubectl(kubeconfig, "default", binary("kubectl"))
    cluster.run("delete", "namespace", "--selector", label, "--timeout=120s", timeout=150)


@pytest.fixture
def kubectl(kubeconfig: str, session_label: str) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own, under restricted Pod Security.

    Removing a namespace takes Kubernetes at least 5 s, so the tests do not wait for it one by one.
    """
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster = Kubectl(kubeconfig, "default", binary("kubectl"))
    labels = [session_label, "pod-security.kubernetes.io/enforce=restricted"]
    cluster.run("create", "namespace", name)
    cluster.run("label", "namespace", name, *labels)
    yield Kubectl(kubeconfig, name, binary("kubectl"))
    cluster.run("delete", "namespace", name, "--wait=false")


@pytest.fixture
def pod() -> Callable[..., dict[str, Any]]:
    """Makes a pod that restricted Pod Security admits; keyword arguments go into its spec."""

    def make(name: str, program: str, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
        container = {
            "name": "main",
            "image": IMAGE,
            "command": ["python3.13", "-u", "-c", program],
            "volumeMounts": [{"name": volume["name"], "mountPath": "/data"} for volume in spec.get("volumes", [])],
        }
        defaults = restricted_spec(container, restartPolicy="Never", terminationGracePeriodSeconds=0)
        metadata = {"name": name, "labels": {"app": name} | (labels or {})}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": defaults | spec}

    return make


@pytest.fixture
def python(kubectl: Kubectl) -> Callable[[str, str], str]:
    """Runs a Python program in a running pod; returns what it printed, or what went wrong."""

    def run(name: str, program: str) -> str:
        guarded = f"try:\n exec({program!r})\nexcept Exception as e:\n print('failed:', e)"
        return kubectl.run("exec", name, "--", "python3.13", "-c", guarded).strip()

    return run
