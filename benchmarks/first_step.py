"""From apply to the first optimizer step, against what no one could avoid: vLLM's own load and one batch of rollouts.

Measured in one run, side by side: the run's vLLM container tells its load (container start to a passed startup
probe), the trainer's first step line how long it waited for rollouts. The tiny model is used, because its step and
its rollouts cost next to nothing: what is left is gymtrain's own part.
"""

import json
import time
from datetime import datetime
from typing import Any

from benchmarks.namespaces import namespace
from benchmarks.report import Result
from tests.support.kubectl import Kubectl
from tests.support.runs import tiny_run

_DEADLINE = 900.0
_RUN = "first-step"


def measure(kubectl: Kubectl) -> list[Result]:
    """The figures of one run.

    Raises:
        AssertionError: the run didn't complete.
    """
    with namespace(kubectl):
        applied = time.time()
        kubectl.apply(tiny_run(_RUN))
        began, up = _vllm_load(kubectl)
        kubectl.wait_condition(_RUN, "Complete", _DEADLINE)
        pod = kubectl.pods(_RUN, role="trainer")[0]
        report = _report(pod)
        first = _first_line(kubectl.logs(pod["metadata"]["name"], "trainer"))

    load, rollouts = up - began, float(first["rollout_wait_s"])
    total, floor = report["first_step_at"] - applied, (up - began) + float(first["rollout_wait_s"])
    name = "first step"
    return [
        Result(name, "apply to first optimizer step", total, "s"),
        Result(name, "of it vLLM's own load", load, "s"),
        Result(name, "of it waiting for the first batch of rollouts", rollouts, "s"),
        Result(name, "apply to vLLM's container started (preflight before it)", began - applied, "s"),
        Result(name, "total against load + rollouts", total / floor, "times", aim=1.2),
        Result(
            name,
            "last server ready to trainer started",
            report["training_started_at"] - report["servers_ready_at"],
            "s",
            aim=3,
        ),
    ]


def _vllm_load(kubectl: Kubectl) -> tuple[float, float]:
    """When vLLM's container started and when its startup probe had passed (seconds since the epoch)."""
    end = time.monotonic() + _DEADLINE
    while time.monotonic() < end:
        for pod in kubectl.pods(_RUN, role="inference"):
            for container in pod["status"].get("containerStatuses", []):
                if container.get("started") and "running" in container["state"]:
                    return _seconds(container["state"]["running"]["startedAt"]), time.time()
        time.sleep(0.5)
    raise AssertionError(f"vLLM did not start within {_DEADLINE:.0f} s")


def _report(pod: dict[str, Any]) -> dict[str, Any]:
    states = {c["name"]: c["state"] for c in pod["status"]["containerStatuses"]}
    report: dict[str, Any] = json.loads(states["trainer"]["terminated"]["message"])
    return report


def _first_line(log: str) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(next(x for x in log.splitlines() if x.startswith('{"event": "step"')))
    return line


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
