"""What is wrong with a pod, in a sentence that a user can act on, and which logs say why."""

from collections.abc import Iterable
from dataclasses import dataclass

from gymtrain_api import labels
from gymtrain_api.pods import container_statuses, phase, stuck_container, unschedulable
from gymtrain_api.times import to_seconds
from gymtrain_operator.kinds import Object
from gymtrain_operator.reconcile.observation import Children, has_condition, name_of, uid_of

_OVERDUE_SECONDS = 60  # a busy kubelet is late in ending a pod, and in telling
TAIL_LINES = 10
MAX_TAIL = 1800  # characters
_MOST_SERVERS = 2
_LOGGED_SERVERS = (labels.Role.INFERENCE, labels.Role.INFERENCE_WORKER, labels.Role.GATEWAY, labels.Role.GYM)
_FIXES = {
    "ErrImagePull": "check the image's name and the pull secrets",
    "ImagePullBackOff": "check the image's name and the pull secrets",
    "ErrImageNeverPull": "the image is not on the node and imagePullPolicy is Never: load it, or change the policy",
    "InvalidImageName": "correct the image's name",
    "CreateContainerConfigError": "create what the container refers to",
}


@dataclass(frozen=True)
class Terminated:
    """A container that ended."""

    pod: str
    container: str
    exit_code: int
    reason: str
    message: str
    init: bool
    finished_at: str = ""


@dataclass(frozen=True)
class LogRef:
    """The log of a container's failed instance. Two equal references have the same content."""

    pod: str
    pod_uid: str
    container: str
    restarts: int
    previous: bool


def is_over(pod: Object) -> bool:
    """Whether no container of the pod runs again. The kubelet reports that the containers ended a second before it
    reports that the pod has; where all ended well, the phase can't become another."""
    if phase(pod) in {"Succeeded", "Failed"}:
        return True
    spec = pod.get("spec") or {}
    well = [t.container for t in terminated(pod) if not t.init and t.exit_code == 0]
    return spec.get("restartPolicy") == "Never" and len(well) == len(spec.get("containers") or ())


def node_of(pod: Object) -> str:
    """Returns the node that the pod was given to; empty if it waits for one."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def has_started(pod: Object, container: str) -> bool:
    """Whether the container's startup probe has passed."""
    return any(s["name"] == container and s.get("started") is True for s, init in container_statuses(pod) if not init)


def was_disrupted(pod: Object) -> bool:
    """Whether the cluster, not the pod's own doing, ended or ends it: eviction, preemption, a lost node.

    The reason Evicted alone says nothing: the kubelet evicts a pod that fills its own volumes, too.
    """
    reason = (pod.get("status") or {}).get("reason", "")
    return has_condition(pod, "DisruptionTarget") or reason in {
        "NodeLost",
        "NodeShutdown",
        "Preempting",
        "Shutdown",
        "Terminated",
    }


def terminated(pod: Object) -> list[Terminated]:
    """Returns the containers of the pod that ended, init containers first."""
    found = []
    for status, init in container_statuses(pod):
        end = (status.get("state") or {}).get("terminated")
        if end:
            found.append(
                Terminated(
                    pod=name_of(pod),
                    container=status["name"],
                    exit_code=int(end.get("exitCode", 0)),
                    reason=str(end.get("reason", "")),
                    message=str(end.get("message", "")).strip(),
                    init=init,
                    finished_at=str(end.get("finishedAt", "")),
                )
            )
    return found


def problem(pod: Object) -> str:
    """Says why the pod is not running as it should; empty if it is on its way or fine."""
    if (why := unschedulable(pod)) is not None:
        return f"pod {name_of(pod)} can't be scheduled: {why}"
    if stuck := stuck_container(pod):
        status, waiting = stuck
        reason = waiting["reason"]
        text = f"pod {name_of(pod)}, container {status['name']}: {reason}: {waiting.get('message', '')}".rstrip(": ")
        last = (status.get("lastState") or {}).get("terminated")
        if last:
            text += f" (it ended with exit code {last.get('exitCode')}, {last.get('reason', '')})"
        return text + (f"; {_FIXES[reason]}" if reason in _FIXES else "")
    if phase(pod) == "Failed":
        status = pod.get("status") or {}
        return f"pod {name_of(pod)} failed: {status.get('reason', '')} {status.get('message', '')}".rstrip(": ")
    return ""


def last_failure(pod: Object) -> str:
    """Says which container of the pod failed last, and what it said; empty if none has."""
    for status, _ in container_statuses(pod):
        for state in (status.get("state"), status.get("lastState")):
            ended = (state or {}).get("terminated") or {}
            if ended.get("exitCode", 0) != 0:
                text = f"pod {name_of(pod)}, container {status['name']} ended with exit code {ended['exitCode']}"
                said = tail(str(ended.get("message", "")))
                return f"{text}: {said}" if said else text
    return ""


def first_problem(pods: Iterable[Object]) -> str:
    """Says what is wrong with the first of several pods that has a problem; empty if none has any."""
    return next((text for text in map(problem, pods) if text), "")


def first_overdue(pods: Iterable[Object], now: float) -> str:
    """Names the first pod that should have ended by now and that nobody says has ended: its node is off, or cut off.
    Kubernetes waits for the node without end, since the pod may run there still. Empty where there is none."""
    for pod in pods:
        # When a pod is deleted this is set to the end of its grace period.
        until = pod["metadata"].get("deletionTimestamp")
        if until and now - (to_seconds(until) or now) > _OVERDUE_SECONDS and not is_over(pod):
            node = node_of(pod)
            return (
                f"pod {name_of(pod)} should have ended by {until}, and its node {node} has not said so. If the node "
                f"is really off: kubectl delete node {node}, or, if it will come back, kubectl taint node {node} "
                "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
            )
    return ""


def crashed_containers(pod: Object) -> list[tuple[str, bool]]:
    """Returns the containers whose log says why they failed: name, and whether it is the log before the restart."""
    found = []
    for status, _ in container_statuses(pod):
        state = status.get("state") or {}
        ended = state.get("terminated")
        last = (status.get("lastState") or {}).get("terminated")
        if ended and ended.get("exitCode", 0) != 0:
            found.append((status["name"], False))
        elif last and last.get("exitCode", 0) != 0 and not status.get("ready"):
            found.append((status["name"], "running" in state))
    return found


def wanted_tails(children: Children, attempt: int) -> list[LogRef]:
    """Returns the logs of the containers that failed: of preflight, of the current trainer, of servers that crash."""
    trainer = children.pods(labels.Role.TRAINER, {labels.ATTEMPT: str(attempt)})
    servers = [pod for role in _LOGGED_SERVERS for pod in children.servers(role)]
    found: list[LogRef] = []
    for group, most in ((children.pods(labels.Role.PREFLIGHT), 4), (trainer, 4), (servers, _MOST_SERVERS)):
        refs = []
        for pod in group:
            restarts = {status["name"]: int(status.get("restartCount", 0)) for status, _ in container_statuses(pod)}
            refs += [
                LogRef(name_of(pod), uid_of(pod), container, restarts[container], previous)
                for container, previous in crashed_containers(pod)
            ]
        found += refs[:most]
    return found


def tail(text: str) -> str:
    """Returns the last lines of a log, in a length that a condition can carry."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-TAIL_LINES:])[-MAX_TAIL:]
