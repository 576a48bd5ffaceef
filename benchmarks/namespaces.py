"""A namespace for one benchmark, gone afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.kubectl import Kubectl


@contextmanager
def namespace(kubectl: Kubectl) -> Iterator[None]:
    """Made anew, under restricted Pod Security, and deleted with all that is in it."""
    kubectl.run("delete", "namespace", kubectl.namespace, "--ignore-not-found", "--timeout=120s", timeout=150)
    kubectl.run("create", "namespace", kubectl.namespace)
    kubectl.run("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce=restricted")
    try:
        yield
    finally:
        kubectl.run("delete", "namespace", kubectl.namespace, "--timeout=120s", timeout=150)
