"""HTTPFull on a CPU: `http_full` in a pod of the trainer-tests image, with both models' shapes."""

import json
import sys

from benchmarks.namespaces import namespace
from benchmarks.report import Result
from tests.support.kubectl import Kubectl, eventually

_POD = "http-full"
_DEADLINE = 1200.0
_IMAGE = "gymtrain/trainer-tests:dev"  # only where the images were built: it is never published
_PATHS = "/opt/tests:/opt/gymtrain:/opt/tests/images/inference"


def measure(kubectl: Kubectl) -> list[Result]:
    """The figures of one pod.

    Raises:
        AssertionError: it did not end in time, or failed.
    """
    with namespace(kubectl):
        kubectl.apply(_pod())
        eventually(lambda: _phase(kubectl) in ("Succeeded", "Failed"), "the benchmark's pod ends", _DEADLINE, every=5)
        log = kubectl.logs(_POD, "main")
    found = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert found, log[-4000:]
    results: list[Result] = []
    for one in found:
        print(json.dumps(one), file=sys.stderr)
        name = f"HTTPFull, {one['billions']} B"
        results += [
            Result(name, "a sync", one["sync"], "s"),
            Result(name, "until the trainer has written it", one["staged"], "s"),
            Result(name, "pods are paused", one["paused"], "s"),
            Result(name, "a plain copy of the bytes", one["copy"], "s"),
            Result(name, "vLLM's own loading", one["loaded"], "s"),
            Result(name, "the sync against copy and loading", one["times"], "times", aim=1.3),
        ]
    return results


def _phase(kubectl: Kubectl) -> str:
    return str(kubectl.get("pod", _POD)["status"].get("phase"))


def _pod() -> dict[str, object]:
    environment = {"HOME": "/tmp", "PYTHONPATH": _PATHS}  # noqa: S108 (in the container)
    container = {
        "name": "main",
        "image": _IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "benchmarks.http_full", "--sizes", "0.1", "0.6"],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": [{"name": "memory", "mountPath": "/dev/shm"}],  # noqa: S108 (in the container)
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _POD}, "spec": spec}
