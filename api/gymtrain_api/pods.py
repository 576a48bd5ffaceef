"""Reading a pod's status: the facts that the operator and the broker judge pods by.

What a fact means, and what the user should do about it, is said where the pod's purpose is known: a vLLM pod, a
trainer's and a sandbox have other fixes for the same trouble.
"""

from collections.abc import Iterator, Mapping
from typing import Any

type Object = Mapping[str, Any]

# What a container waits for that is on its way, not in trouble.
_ON_ITS_WAY = {"", "ContainerCreating", "PodInitializing"}


def phase(pod: Object) -> str:
    """status.phase."""
    return str((pod.get("status") or {}).get("phase") or "")


def condition(manifest: Object, kind: str) -> dict[str, Any]:
    """A condition of an object's status; empty where it has none of the kind."""
    conditions = (manifest.get("status") or {}).get("conditions") or []
    return next((dict(one) for one in conditions if one.get("type") == kind), {})


def unschedulable(pod: Object) -> str | None:
    """The scheduler's words where no node takes the pod; None where one has it, or the scheduler has not tried yet."""
    scheduled = condition(pod, "PodScheduled")
    return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else None


def container_statuses(pod: Object) -> Iterator[tuple[dict[str, Any], bool]]:
    """Container statuses of a pod, those of init containers first, each with whether it is one."""
    status = pod.get("status") or {}
    for item in status.get("initContainerStatuses") or []:
        yield item, True
    for item in status.get("containerStatuses") or []:
        yield item, False


def stuck_container(pod: Object) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The first container that waits for something other than its usual start: its status, and what it waits for."""
    for status, _ in container_statuses(pod):
        waiting = (status.get("state") or {}).get("waiting") or {}
        if (waiting.get("reason") or "") not in _ON_ITS_WAY:
            return status, waiting
    return None
