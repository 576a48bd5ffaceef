"""HTTPFull on a CPU: `http_full` in a pod of the trainer-tests image, with both models' shapes."""

import json
import sys

from benchmarks.namespaces import namespace
from benchmarks.report import Result
from tests.support.kubectl import Kubectl
from tests.support.trainer_tests import run_to_its_end

_DEADLINE = 1200.0
_COMMAND = ["python", "-m", "benchmarks.http_full", "--sizes", "0.1", "0.6"]
_PATHS = "/opt/tests:/opt/gymtrain:/opt/tests/inference"
_MEMORY = {"name": "memory", "emptyDir": {"medium": "Memory"}}
_MOUNT = {"name": "memory", "mountPath": "/dev/shm"}  # noqa: S108 - in the pod


def measure(kubectl: Kubectl) -> list[Result]:
    """The figures of one pod.

    Raises:
        AssertionError: it failed, or did not end in time.
    """
    with namespace(kubectl):
        log = run_to_its_end(
            kubectl,
            "http-full",
            {"PYTHONPATH": _PATHS},
            _DEADLINE,
            volumes=[_MEMORY],
            command=_COMMAND,
            volumeMounts=[_MOUNT],
        )
    found = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
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
