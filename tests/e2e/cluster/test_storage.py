from collections.abc import Callable
from typing import Any

from tests.support.kubectl import Kubectl


def test_a_claim_without_a_class_is_bound_and_keeps_its_data(
    kubectl: Kubectl, pod: Callable[..., dict[str, Any]]
) -> None:
    request = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": request}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    done = "--for=jsonpath={.status.phase}=Succeeded"

    kubectl.apply(claim, pod("writer", "open('/data/file', 'w').write('kept')", volumes=volumes))
    kubectl.run("wait", done, "pod/writer", "--timeout=60s", timeout=70)
    kubectl.run("delete", "pod", "writer")
    kubectl.apply(pod("reader", "print(open('/data/file').read())", volumes=volumes))
    kubectl.run("wait", done, "pod/reader", "--timeout=60s", timeout=70)

    assert kubectl.logs("reader", "main").strip() == "kept"
    assert kubectl.get("persistentvolumeclaim", "data")["status"]["phase"] == "Bound"
