"""A namespace for one benchmark, gone afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.kubectl import Kubectl


@contextmanager
def namespace(kubectl: Kubectl) -> Iterator[None]:
    """A new one under restricted Pod Security, deleted with everything in it."""
    kubectl.run("delete", "namespace", kubectl.namespace, "--ignore-not-found", "--timeout=120s", timeout=150)
    kubectl.run("create", "namespace", kubectl.namespace)
    kubectl.run("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce=restricted")
    try:
        yield
    finally:
        kubectl.run("delete", "namespace", kubectl.namespace, "--timeout=120s", timeout=150)
