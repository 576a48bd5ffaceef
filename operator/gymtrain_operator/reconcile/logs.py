"""Which logs tell why something failed."""

from dataclasses import dataclass

from gymtrain_api import labels
from gymtrain_operator.reconcile.observation import Children, name_of, uid_of
from gymtrain_operator.reconcile.pod_diagnosis import container_statuses, crashed_containers

TAIL_LINES = 10
MAX_TAIL = 1800  # characters

_MOST_SERVERS = 2


@dataclass(frozen=True)
class LogRef:
    """The log of a container's failed instance. Two equal references have the same content."""

    pod: str
    pod_uid: str
    container: str
    restarts: int
    previous: bool


def wanted_tails(children: Children, attempt: int) -> list[LogRef]:
    """Logs of the containers that failed: of preflight, of the current trainer, of servers that crash."""
    trainer = children.pods(labels.Role.TRAINER, {labels.ATTEMPT: str(attempt)})
    servers = [
        pod for role in (labels.Role.INFERENCE, labels.Role.GATEWAY, labels.Role.GYM) for pod in children.servers(role)
    ]
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
    """The last lines of a log, in a length that a condition can carry."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-TAIL_LINES:])[-MAX_TAIL:]
