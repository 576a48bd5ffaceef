"""The life of a run around its training: suspension, deadlines, the end, and what comes after it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gymtrain_api import agent_sandbox, labels, leader_worker_set
from gymtrain_api.condition_table import CONDITIONS, reason_row
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.defaults import AppliedDefaults
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.times import to_seconds, to_text
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.reconcile.changes import Changes, Deletion, Failure
from gymtrain_operator.reconcile.conditions import StatedCondition, false_condition
from gymtrain_operator.reconcile.observation import Observation, attempt_of, is_deleting, is_finished
from gymtrain_operator.reconcile.pod_diagnosis import is_over

_SANDBOX_POLL_SECONDS = 2.0
_TRAINER_POLL_SECONDS = 1.0
_SIGNAL_SECONDS = 10.0
"""From a pod's deletion until its containers certainly have SIGTERM: less than a second on a node that isn't busy."""
ENDS = (ConditionType.COMPLETE, ConditionType.FAILED)


@dataclass(frozen=True)
class RunTimes:
    """Times of the run that its status keeps."""

    start_time: str
    suspended_seconds: int | None


def reopened(status: GymTrainingRunStatus, generation: int) -> GymTrainingRunStatus:
    """Returns the status to continue from: a run that failed before it trained starts again when its spec changes."""
    failed = status.condition(ConditionType.FAILED)
    if not failed or failed.status != "True" or not reason_row(failed.reason).mendable:
        return status
    if failed.observed_generation is not None and failed.observed_generation >= generation:
        return status
    return status.model_copy(
        update={"start_time": None, "completion_time": None, "suspended_seconds": None, "conditions": []}
    )


def has_ended(status: GymTrainingRunStatus) -> bool:
    """Whether the run is Complete or Failed."""
    return any(status.is_true(kind) for kind in ENDS)


def run_times(seen: Observation, before: GymTrainingRunStatus, *, idle: bool) -> RunTimes:
    """Returns start and suspended time; a suspension, or a wait in a queue, is added when it ends. `idle`: one lasts
    still."""
    suspended = before.suspended_seconds
    since = _idle_since(before)
    if since is not None and not idle:
        suspended = (suspended or 0) + max(0, int(seen.now - since))
    return RunTimes(before.start_time or to_text(seen.now), suspended)


def remaining_seconds(seen: Observation, run: RunContext, times: RunTimes) -> float | None:
    """Returns the seconds until activeDeadlineSeconds is over; None if there is no deadline."""
    limit = run.spec.active_deadline_seconds
    started = to_seconds(times.start_time)
    if limit is None or started is None:
        return None
    return limit - (seen.now - started - (times.suspended_seconds or 0))


def deadline_failure(run: RunContext, before: GymTrainingRunStatus) -> Failure:
    """Returns the failure of a run that took longer than activeDeadlineSeconds."""
    done = f" at step {before.progress.step}" if before.progress else ""
    text = f"the run was active for {run.spec.active_deadline_seconds} s (activeDeadlineSeconds) and ended{done}"
    return Failure(Reason.DEADLINE_EXCEEDED, text)


def suspended_conditions(seen: Observation, before: GymTrainingRunStatus) -> list[StatedCondition]:
    """States the conditions of a suspended run, but for parts that its spec leaves out."""
    queued = seen.run.queue or before.condition(ConditionType.ADMITTED)
    return [
        StatedCondition.of_table(kind, row.suspended)
        for kind, row in CONDITIONS.items()
        if row.suspended
        and (row.block is None or getattr(seen.run.spec, row.block, None) is not None)
        and (queued or not row.queued)
    ]


def not_suspended(before: GymTrainingRunStatus) -> StatedCondition:
    """States Suspended of a run that isn't."""
    old = before.condition(ConditionType.SUSPENDED)
    resumed = old is not None and (old.status == "True" or old.reason == Reason.RESUMED)
    return false_condition(ConditionType.SUSPENDED, Reason.RESUMED if resumed else Reason.NOT_SUSPENDED)


def stop_all(seen: Observation) -> Changes:
    """Suspends a run: everything that has pods goes. Volumes, Services and ConfigMaps stay."""
    return _trainer_first(seen, seen.children.of("Job") + seen.children.pods(labels.Role.PREFLIGHT))


def _trainer_first(seen: Observation, first: list[Object]) -> Changes:
    """Deletes `first`, the trainer's Jobs among them; servers and sandboxes once its pods know.

    A trainer ends its rollouts when it is told to stop; a rollout that loses its server before counts as lost, and its
    row as done.
    """
    changes = _deletions(first)
    over = {attempt_of(job) for job in seen.children.of("Job") if is_finished(job)}
    trainers = [pod for pod in seen.children.pods(labels.Role.TRAINER) if attempt_of(pod) not in over]
    if not all(_knows_its_end(pod, seen.now) for pod in trainers):
        return replace(changes, requeue_after=_TRAINER_POLL_SECONDS)
    return changes.and_then(_deletions(_servers(seen))).and_then(delete_sandboxes(seen))


def _knows_its_end(pod: Object, now: float) -> bool:
    """Whether a pod is over or was told to stop: its node's kubelet has had the time to send it the signal."""
    if is_over(pod):
        return True
    meta = pod["metadata"]
    killed = to_seconds(meta.get("deletionTimestamp"))  # the time of the deletion, and the grace period upon it
    grace = float(meta.get("deletionGracePeriodSeconds") or 0)
    return killed is not None and now >= killed - grace + _SIGNAL_SECONDS


def _servers(seen: Observation) -> list[Object]:
    return seen.children.of("Deployment") + seen.children.of(leader_worker_set.KIND)


def delete_sandboxes(seen: Observation) -> Changes:
    """Deletes the sandboxes that the broker left behind, and looks for them until the broker itself is gone."""
    sandboxes = seen.children.pods(labels.Role.SANDBOX)
    for kind in agent_sandbox.KINDS:
        sandboxes += seen.children.of(kind)
    left = sandboxes or seen.children.pods(labels.Role.BROKER)
    return replace(_deletions(sandboxes), requeue_after=_SANDBOX_POLL_SECONDS if left else None)


def tear_down(seen: Observation) -> Changes:
    """Ends a run: servers go, and before them a trainer that still runs. What ended stays, for its log."""
    jobs = [job for job in seen.children.of("Job") if not is_finished(job)]
    preflight = [p for p in seen.children.pods(labels.Role.PREFLIGHT) if not is_over(p)]
    return _trainer_first(seen, jobs + preflight)


def seconds_to_live(seen: Observation, before: GymTrainingRunStatus) -> float | None:
    """Returns the seconds until an ended run is deleted; None if it stays, as it does while its spec can't be read.

    They count from its end, or from when the status said so first: who restores an ended run wants to have it.
    """
    told = [c.last_transition_time for c in before.conditions if c.type in ENDS and c.status == "True"]
    ended = ended_at((before.completion_time, *told))
    ttl = time_to_live(seen.run.spec, before.defaults) if seen.run.spec else None
    return None if ttl is None or ended is None else ttl - (seen.now - ended)


def ended_at(told: Iterable[object]) -> float | None:
    """Returns when a run ended, of the texts that tell its end: the last of those that are times; None without any."""
    return max((time for text in told if (time := to_seconds(text)) is not None), default=None)


def time_to_live(spec: GymTrainingRunSpec, defaults: AppliedDefaults | None) -> int | None:
    """Returns the seconds that a run stays after its end; None if it stays until someone deletes it."""
    own = spec.ttl_seconds_after_finished
    return own if own is not None or defaults is None else defaults.ttl_seconds_after_finished


def _idle_since(status: GymTrainingRunStatus) -> float | None:
    """Returns since when the run has been suspended or waits in a queue, which it may do one after the other."""
    admitted, suspended = status.condition(ConditionType.ADMITTED), status.condition(ConditionType.SUSPENDED)
    if admitted is not None:
        return to_seconds(admitted.last_transition_time) if admitted.status == "False" else None
    return to_seconds(suspended.last_transition_time) if suspended and suspended.status == "True" else None


def _deletions(objects: list[Object]) -> Changes:
    return Changes(delete=tuple(Deletion.of(item) for item in objects if not is_deleting(item)))
