"""Room in the cluster: which pods of a run wait for it, and what that means for an attempt.

A run that has trained has something to lose, and a cluster that is full gets room again. So such a run waits for it
without end (activeDeadlineSeconds still holds), and the startup deadline counts from when there was room for all. A run
that never trained fails by the deadline, as one whose pods no node can ever hold should.
"""

from gymtrain_api import labels, names
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.pods import condition, phase, unschedulable
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.times import to_seconds
from gymtrain_operator.kinds import Object
from gymtrain_operator.reconcile.observation import Observation, age_of, attempt_of, is_finished, name_of
from gymtrain_operator.reconcile.pod_diagnosis import node_of

RESTART_SECONDS = 300.0
"""Pause before an attempt that ended while it waited for room is begun again."""

_VLLM = (labels.Role.INFERENCE, labels.Role.INFERENCE_WORKER)
_SERVERS = (*_VLLM, labels.Role.GYM, labels.Role.GATEWAY, labels.Role.BROKER)
_MADE_SECONDS = 60.0  # a busy Job controller is late in making pods


def has_trained(seen: Observation, before: GymTrainingRunStatus) -> bool:
    """Whether the run has done a step of training, in any attempt."""
    recorded = seen.run.record is not None and seen.run.record.trained
    return recorded or (before.progress is not None and before.progress.step > 0)


def without_room(seen: Observation, attempt: int) -> str:
    """Names the first pod of the attempt that no node has room for, in the scheduler's words; empty if there is
    none."""
    pods = seen.children.pods(labels.Role.TRAINER, {labels.ATTEMPT: str(attempt)})
    for pod in [*pods, *_server_pods(seen)]:
        if _has_no_room(pod):
            return f"pod {name_of(pod)} can't be scheduled: {unschedulable(pod)}"
    for deployment in seen.children.of("Deployment"):
        refused = condition(deployment, "ReplicaFailure")
        if refused.get("status") == "True" and "exceeded quota" in str(refused.get("message")):
            return f"no pod of Deployment {name_of(deployment)} can be made: {refused['message']}"
    job = seen.children.get("Job", names.trainer_job(seen.run.name, attempt))
    if job is not None and not pods and not is_finished(job) and age_of(job, seen.now) > _MADE_SECONDS:
        return (
            f"no pod of Job {name_of(job)} is made: a quota, a queue or an admission policy holds them back; "
            f"kubectl describe job {name_of(job)} says which"
        )
    return ""


def ended_for_want_of_room(seen: Observation, before: GymTrainingRunStatus, job: Object) -> bool:
    """Whether the last that is known of an attempt before its Job failed is that it waited for room."""
    old = before.condition(ConditionType.PROGRESSING)
    waited = old is not None and old.reason == Reason.WAITING_FOR_CAPACITY
    return waited and before.attempt == attempt_of(job)


def lost_servers(seen: Observation, job: Object) -> bool:
    """Whether a server of the run had no room any more when the attempt's Job failed. vLLM counts only if none of it is
    left: an autoscaler may ask for one more than the cluster ever has room for, which excuses no attempt."""
    failed = condition(job, "Failed")
    failed_at = to_seconds(failed.get("lastTransitionTime"))
    if failed.get("status") != "True" or failed_at is None:
        return False
    left = any(condition(pod, "Ready").get("status") == "True" for pod in seen.children.servers(labels.Role.INFERENCE))
    roles = [role for role in _SERVERS if role not in _VLLM or not left]
    return any(_has_no_room(pod) and _since(pod) < failed_at for role in roles for pod in seen.children.servers(role))


def startup_begins(seen: Observation, before: GymTrainingRunStatus, job: Object, *, trained: bool) -> float:
    """Returns when the startup deadline begins to count: with the attempt, or, of a run that has trained, when it had
    room."""
    begun = to_seconds(job["metadata"].get("creationTimestamp")) or seen.now
    old = before.condition(ConditionType.PROGRESSING)
    if not trained or old is None:
        return begun
    if old.reason == Reason.WAITING_FOR_CAPACITY:
        return seen.now
    # Progressing is False while the run waits for room, and has been True since.
    return max(begun, to_seconds(old.last_transition_time) or begun) if old.status == "True" else begun


def _server_pods(seen: Observation) -> list[Object]:
    return [pod for role in _SERVERS for pod in seen.children.servers(role)]


def _has_no_room(pod: Object) -> bool:
    """Whether the scheduler looked for a node and found none, or a queue keeps it from looking."""
    return phase(pod) == "Pending" and not node_of(pod) and unschedulable(pod) is not None


def _since(pod: Object) -> float:
    return to_seconds(condition(pod, "PodScheduled").get("lastTransitionTime")) or 0.0
