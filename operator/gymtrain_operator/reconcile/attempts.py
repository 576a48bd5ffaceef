"""Attempts: which one it is, how it ended, and whether its end counts.

Each attempt is a Job. One that failed counts against backoffLimit, unless the cluster took its pods away (eviction,
preemption, node shutdown), or those of its servers and had no room for new ones: the run did not fail, its nodes did.
"""

from gymtrain_api import labels, names
from gymtrain_api.pods import condition
from gymtrain_api.status import MAX_DISRUPTED_ATTEMPTS, GymTrainingRunStatus
from gymtrain_api.wiring import TrainerProgress
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.trainer import CONTAINER
from gymtrain_operator.reconcile.capacity import has_trained, lost_servers
from gymtrain_operator.reconcile.observation import Observation, attempt_of, labels_of, name_of
from gymtrain_operator.reconcile.pod_diagnosis import terminated, was_disrupted
from gymtrain_operator.reconcile.progress import parse_report

FIRST_BACKOFF_SECONDS = 10
MAX_BACKOFF_SECONDS = 300

_INDEX = "batch.kubernetes.io/job-completion-index"
_BY_POLICY = "PodFailurePolicy"  # reason of a Job that its podFailurePolicy ended


def current_attempt(seen: Observation, before: GymTrainingRunStatus) -> int:
    """Returns the newest attempt that is known: of the status, or of a Job that was made just before a restart.

    Where neither tells, the one on record: the status couldn't be written. Where all of a status was lost, and so the
    attempt ended (`record.status_from_record`), the next.
    """
    made = [attempt_of(job) for job in seen.children.of("Job")]
    recorded = seen.run.record.attempt if seen.run.record is not None else None
    if not made and before.attempt is None and recorded is not None:
        return recorded + 1 if recorded in before.disrupted_attempts else recorded
    return max([before.attempt or 1, *made])


def trainer_pods(seen: Observation, attempt: int) -> list[Object]:
    """Returns the pods of one attempt, by node rank."""
    pods = seen.children.pods(labels.Role.TRAINER, {labels.ATTEMPT: str(attempt)})
    return sorted(pods, key=lambda pod: int(labels_of(pod).get(_INDEX, "0")))


def final_report(pods: list[Object]) -> TrainerProgress | None:
    """Reads what the first node's trainer left as its termination message."""
    for pod in pods[:1]:
        for end in terminated(pod):
            if end.container == CONTAINER:
                return parse_report(end.message)
    return None


def disrupted_attempts(seen: Observation, before: GymTrainingRunStatus) -> tuple[int, ...]:
    """Returns the attempts that the cluster ended.

    The status keeps them, since neither pods nor Jobs stay. They are noted as soon as a pod is marked for disruption:
    when its Job has failed the pod may be gone, and of several nodes another pod's error may end the Job first.
    """
    known = tuple(before.disrupted_attempts)
    attempt = current_attempt(seen, before)
    if attempt in known or len(known) >= MAX_DISRUPTED_ATTEMPTS:
        return known
    job = seen.children.get("Job", names.trainer_job(seen.run.name, attempt)) or {}
    lost = (
        condition(job, "Failed").get("reason") == _BY_POLICY
        or any(map(was_disrupted, trainer_pods(seen, attempt)))
        or (has_trained(seen, before) and lost_servers(seen, job))
    )
    return (*known, attempt) if lost else known


def backoff_seconds(attempt: int) -> int:
    """Returns the pause after attempt `attempt` failed: 10, 20, 40, ... at most 300 seconds."""
    return int(min(FIRST_BACKOFF_SECONDS * 2 ** max(0, min(attempt - 1, 10)), MAX_BACKOFF_SECONDS))


def disruption_message(pods: list[Object], job: Object) -> str:
    """Says what the cluster did to a pod."""
    for pod in pods:
        target = condition(pod, "DisruptionTarget")
        if target.get("status") == "True":
            return f"pod {name_of(pod)}: {target.get('reason', '')}: {target.get('message', '')}".rstrip(": ")
        if was_disrupted(pod):
            status = pod["status"]
            return f"pod {name_of(pod)}: {status.get('reason', '')}: {status.get('message', '')}".rstrip(": ")
    return str(condition(job, "Failed").get("message", ""))


def failure_message(seen: Observation, pods: list[Object], job: Object) -> str:
    """Says which container failed and what it said last."""
    # When one node fails the others follow; the first to end is the cause.
    ends = sorted((e for pod in pods for e in terminated(pod) if e.exit_code != 0), key=lambda e: e.finished_at)
    if not ends:
        failed = condition(job, "Failed")
        return f"the trainer's pods are gone ({failed.get('reason', '')}: {failed.get('message', '')})"
    end = ends[0]
    why = f" ({end.reason})" if end.reason not in {"", "Error"} else ""
    text = f"pod {end.pod}, container {end.container}, ended with exit code {end.exit_code}{why}"
    report = parse_report(end.message)
    tail = seen.log_tails.get((end.pod, end.container), "")
    if report and report.message:
        text += f": {report.message}"
    elif end.message and not tail:
        text += f": {end.message}"
    return f"{text}\nIts last lines:\n{tail}" if tail else text


def quoted_tails(seen: Observation) -> str:
    """Quotes the last lines of the first container that failed."""
    return "".join(
        f"\nlast lines of pod {pod}, container {container}:\n{tail}"
        for (pod, container), tail in list(seen.log_tails.items())[:1]
    )
