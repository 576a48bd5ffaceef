"""Resident memory of the operator with 50 runs.

The runs name a dataset volume that doesn't exist: each gets its status and is looked at again and again, but holds no
server, so that 50 of them fit on a small machine.
"""

import time

from benchmarks.namespaces import namespace
from benchmarks.report import Result
from tests.support.kubectl import Kubectl, eventually
from tests.support.runs import tiny_run

_RUNS = 50
_OPERATOR = ("-n", "gymtrain-system", "exec", "deploy/gymtrain-operator", "--")


def measure(kubectl: Kubectl) -> list[Result]:
    """Memory before, with all runs seen, and half a minute later."""
    with namespace(kubectl):
        before = _resident(kubectl)
        began = time.monotonic()
        runs = [tiny_run(f"memory-{number}") for number in range(_RUNS)]
        for run in runs:
            run["spec"]["data"]["train"] = [{"source": "pvc://nowhere/rows.jsonl"}]
        kubectl.apply(*runs)

        def seen() -> bool:
            return all("state" in r.get("status", {}) for r in kubectl.list("gymtrainingruns"))

        eventually(seen, "all runs have a status", 300)
        settled = time.monotonic() - began
        time.sleep(30)
        after = _resident(kubectl)
    name = "operator memory"
    return [
        Result(name, "without runs", before, "MB"),
        Result(name, f"with {_RUNS} runs", after, "MB", aim=150),
        Result(name, f"apply to all {_RUNS} runs seen", settled, "s"),
    ]


def _resident(kubectl: Kubectl) -> float:
    """Megabytes of the operator's process."""
    status = kubectl.run(*_OPERATOR, "cat", "/proc/1/status")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1000
