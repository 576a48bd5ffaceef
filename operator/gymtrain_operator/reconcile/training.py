"""The training Job: attempts, backoff, deadlines, and what the trainer says."""

from dataclasses import dataclass, replace
from typing import Literal

from gymtrain_api import labels, names
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.pods import condition, phase
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.times import to_seconds, to_text
from gymtrain_api.wiring import ExitCode, TrainerProgress
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.trainer import CONTAINER, trainer_job
from gymtrain_operator.reconcile.attempts import (
    backoff_seconds,
    current_attempt,
    disrupted_attempts,
    disruption_message,
    failure_message,
    final_report,
    quoted_tails,
    trainer_pods,
)
from gymtrain_operator.reconcile.capacity import (
    RESTART_SECONDS,
    ended_for_want_of_room,
    has_trained,
    lost_servers,
    startup_begins,
    without_room,
)
from gymtrain_operator.reconcile.changes import Changes, Deletion, Failure, Update
from gymtrain_operator.reconcile.conditions import StatedCondition, false_condition, true_condition
from gymtrain_operator.reconcile.observation import (
    Observation,
    age_of,
    attempt_of,
    has_condition,
    is_deleting,
    name_of,
)
from gymtrain_operator.reconcile.pod_diagnosis import first_overdue, first_problem, is_over, terminated
from gymtrain_operator.reconcile.progress import with_notices
from gymtrain_operator.reconcile.servers import ServersStep
from gymtrain_operator.reconcile.weight_sync import has_weights_of

_MAX_START_POLL_SECONDS = 10.0
_IDLE_POLL_SECONDS = 10.0  # while no trainer pod runs, events tell of every change
_WAKE_SECONDS = 60.0
KEPT_JOBS = 3
"""Jobs of earlier attempts that are kept, with their pods and logs."""

_STARTED = {"waiting_for_rollouts", "training", "complete"}
_TRAINED = {Reason.TRAINING, Reason.ROLLOUTS_FAILING}

type Phase = Literal["starting", "training", "retrying", "complete"]


@dataclass(frozen=True)
class TrainingStep:
    """Where training stands.

    Attributes:
        attempt: number of the attempt that runs, or that starts next.
        disrupted: attempts that the cluster ended.
        report: the trainer's last word, of its HTTP port or its termination message.
    """

    changes: Changes
    attempt: int
    phase: Phase
    report: TrainerProgress | None = None
    failure: Failure | None = None
    disrupted: tuple[int, ...] = ()


def step(seen: Observation, run: RunContext, servers: ServersStep, before: GymTrainingRunStatus) -> TrainingStep:
    """Brings training one step on."""
    disrupted = disrupted_attempts(seen, before)
    done = _step(seen, run, servers, before, disrupted)
    return replace(done, changes=with_notices(done.changes, done.report), disrupted=disrupted)


def _step(
    seen: Observation, run: RunContext, servers: ServersStep, before: GymTrainingRunStatus, disrupted: tuple[int, ...]
) -> TrainingStep:
    attempt = current_attempt(seen, before)
    job = seen.children.get("Job", names.trainer_job(run.name, attempt))
    if job is None:
        return _start(seen, run, servers, attempt, "starting the trainer")
    if is_deleting(job):
        if overdue := first_overdue(trainer_pods(seen, attempt), seen.now):
            return _waiting_for_node(attempt, overdue)
        return _progressing(seen, attempt, _starting_reason(servers), "waiting for the pods of the last trainer to end")
    if has_condition(job, "Complete"):
        report = final_report(trainer_pods(seen, attempt))
        return TrainingStep(Changes(), attempt, "complete", report)
    if has_condition(job, "Failed"):
        return _after_failure(seen, run, servers, before, job, attempt, disrupted)
    return _woken(seen, _under_way(seen, run, servers, before, job, attempt), job)


def _woken(seen: Observation, done: TrainingStep, job: Object) -> TrainingStep:
    """Has the Job controller look at a Job that goes on without pods. Where it missed an event of a pod it does nothing
    more by itself, though all pods have failed; where pods were refused it may wait for minutes."""
    last = to_seconds((job["metadata"].get("annotations") or {}).get(labels.WOKEN_AT))
    since = age_of(job, seen.now) if last is None else seen.now - last
    if trainer_pods(seen, done.attempt) or since <= _WAKE_SECONDS:
        return done
    touched = Update(job, {"metadata": {"annotations": {labels.WOKEN_AT: to_text(seen.now)}}})
    return replace(done, changes=done.changes.and_then(Changes(updates=(touched,))))


def _start(seen: Observation, run: RunContext, servers: ServersStep, attempt: int, message: str) -> TrainingStep:
    if left := [pod for pod in seen.children.strays if not is_over(pod)]:
        return _waiting_for_strays(seen, servers, attempt, left)
    outdated = [j for j in seen.children.of("Job") if attempt_of(j) < attempt - KEPT_JOBS]
    changes = Changes(
        apply=(trainer_job(run, attempt),),
        delete=tuple(Deletion.of(job) for job in outdated if not is_deleting(job)),
    )
    going = _progressing(seen, attempt, _starting_reason(servers), message)
    return TrainingStep(changes.and_then(going.changes), attempt, "starting")


def _waiting_for_strays(seen: Observation, servers: ServersStep, attempt: int, left: list[Object]) -> TrainingStep:
    """Waits for trainers whose Job is gone, as after `kubectl delete job`: they may still write to the volume."""
    if overdue := first_overdue(left, seen.now):
        return _waiting_for_node(attempt, overdue)
    name = name_of(left[0])
    text = f"waiting for pod {name} to end, a trainer whose Job is gone"
    text = f"{text}. If nothing deletes it: kubectl delete pod {name}"
    return _progressing(seen, attempt, _starting_reason(servers), text)


def _progressing(
    seen: Observation,
    attempt: int,
    reason: Reason,
    message: str,
    *,
    phase: Phase = "starting",
    report: TrainerProgress | None = None,
) -> TrainingStep:
    stated = true_condition(ConditionType.PROGRESSING, reason, message)
    pause = seen.poll_seconds if phase == "training" else _start_poll(seen)
    return TrainingStep(Changes(conditions=(stated,), requeue_after=pause), attempt, phase, report)


def _start_poll(seen: Observation) -> float:
    """Seconds until a trainer that has yet to start is asked again."""
    return min(seen.poll_seconds, _MAX_START_POLL_SECONDS)


def _after_failure(
    seen: Observation,
    run: RunContext,
    servers: ServersStep,
    before: GymTrainingRunStatus,
    job: Object,
    attempt: int,
    disrupted: tuple[int, ...],
) -> TrainingStep:
    pods = trainer_pods(seen, attempt)
    report = final_report(pods)
    message = failure_message(seen, pods, job)
    if any(t.exit_code == ExitCode.REFUSED for pod in pods for t in terminated(pod) if t.container == CONTAINER):
        return TrainingStep(Changes(), attempt, "retrying", report, Failure(Reason.TRAINER_REFUSED, message))
    failed_at = to_seconds(condition(job, "Failed").get("lastTransitionTime")) or seen.now
    if ended_for_want_of_room(seen, before, job):
        return _restart(seen, job, attempt, failed_at + RESTART_SECONDS, message)
    limit = run.spec.backoff_limit
    failed = attempt - len(disrupted)
    if failed > limit:
        more = f", and the cluster ended {len(disrupted)} more" if disrupted else ""
        text = f"all {failed} attempts failed (backoffLimit {limit}){more}. The last: {message}"
        return TrainingStep(Changes(), attempt, "retrying", report, Failure(Reason.BACKOFF_LIMIT_EXCEEDED, text))
    what = f"attempt {attempt} of {limit + 1 + len(disrupted)} failed"
    if attempt in disrupted:
        what = f"the cluster ended attempt {attempt}, which doesn't count against backoffLimit"
        message = without_room(seen, attempt) if lost_servers(seen, job) else disruption_message(pods, job)
    next_at = failed_at + backoff_seconds(failed)
    if seen.now >= next_at:
        return _start(seen, run, servers, attempt + 1, f"{what}, starting attempt {attempt + 1}: {message}")
    text = f"{what}, the next starts at {to_text(next_at)}: {message}"
    stated = false_condition(ConditionType.PROGRESSING, Reason.RETRYING, text)
    return TrainingStep(Changes(conditions=(stated,), requeue_after=next_at - seen.now), attempt, "retrying", report)


def _restart(seen: Observation, job: Object, attempt: int, at: float, message: str) -> TrainingStep:
    """Begins an attempt again that ended while it waited for room, by a deadline of its own or in the wait: it never
    started, so it keeps its number and doesn't count, however often that happens."""
    room = without_room(seen, attempt)
    text = f"attempt {attempt} ended while it waited for room in the cluster and begins again at {to_text(at)}"
    text = f"{text}: {f'{room}; ' if room else ''}{message}"
    stated = false_condition(ConditionType.PROGRESSING, Reason.WAITING_FOR_CAPACITY, text)
    gone = (Deletion.of(job),) if seen.now >= at else ()
    changes = Changes(delete=gone, conditions=(stated,), requeue_after=max(0.0, at - seen.now) or _start_poll(seen))
    return TrainingStep(changes, attempt, "starting")


def _under_way(
    seen: Observation, run: RunContext, servers: ServersStep, before: GymTrainingRunStatus, job: Object, attempt: int
) -> TrainingStep:
    pods = trainer_pods(seen, attempt)
    report = seen.progress
    running = any(phase(pod) not in {"", "Pending"} for pod in pods)
    started = (
        has_weights_of(servers.weight_sync, run.name, attempt)
        or (report is not None and report.phase in _STARTED)
        # vLLM is ready once it holds weights, so a trainer that the operator can't reach has started too.
        or (running and not servers.waiting_for)
    )
    if not started:
        trained = has_trained(seen, before)
        if trained and (room := without_room(seen, attempt)):
            text = f"attempt {attempt} waits for room in the cluster: {room}"
            stated = false_condition(ConditionType.PROGRESSING, Reason.WAITING_FOR_CAPACITY, text)
            pause = _start_poll(seen) if running else _IDLE_POLL_SECONDS
            return TrainingStep(Changes(conditions=(stated,), requeue_after=pause), attempt, "starting", report)
        since = startup_begins(seen, before, job, trained=trained)
        deadline = run.spec.startup_deadline_seconds
        if seen.now - since > deadline:
            return _startup_failed(seen, servers, pods, attempt, deadline)
    # Of several nodes the others wait for the lost one and go on reporting until their collective times out.
    if overdue := first_overdue(pods, seen.now):
        return _waiting_for_node(attempt, overdue, report)
    if report is None:
        return _without_report(seen, run, servers, before, pods, attempt, running=running)
    if report.rollouts_failing_since is not None:
        since_text = to_text(report.rollouts_failing_since)
        text = f"no usable rollout since {since_text}: {report.message}".rstrip(": ")
        stated = false_condition(ConditionType.PROGRESSING, Reason.ROLLOUTS_FAILING, text)
        return TrainingStep(Changes(conditions=(stated,), requeue_after=seen.poll_seconds), attempt, "training", report)
    message = report.message or report.phase.replace("_", " ")
    old = before.condition(ConditionType.PROGRESSING)
    trained = old is not None and old.reason in _TRAINED and before.attempt == attempt
    if report.phase not in _STARTED and not trained:
        return _progressing(seen, attempt, _starting_reason(servers), servers.waiting_for or message, report=report)
    # A trainer waits for rollouts before each step; only the first wait is a state of its own.
    first_wait = report.phase == "waiting_for_rollouts" and not trained
    reason = Reason.WAITING_FOR_ROLLOUTS if first_wait else Reason.TRAINING
    return _progressing(seen, attempt, reason, message, phase="training", report=report)


def _starting_reason(servers: ServersStep) -> Reason:
    return Reason.WAITING_FOR_SERVERS if servers.waiting_for else Reason.TRAINER_STARTING


def _waiting_for_node(attempt: int, overdue: str, report: TrainerProgress | None = None) -> TrainingStep:
    """Waits for a trainer pod that was lost with its node: the Job fails only once the pod is reported as ended."""
    text = f"the next trainer starts when the pods of attempt {attempt} have ended: {overdue}"
    stated = false_condition(ConditionType.PROGRESSING, Reason.RETRYING, text)
    return TrainingStep(Changes(conditions=(stated,), requeue_after=_IDLE_POLL_SECONDS), attempt, "retrying", report)


def _without_report(
    seen: Observation,
    run: RunContext,
    servers: ServersStep,
    before: GymTrainingRunStatus,
    pods: list[Object],
    attempt: int,
    *,
    running: bool,
) -> TrainingStep:
    """Goes on while the trainer doesn't answer: it starts, one answer was lost, or it is one that never reports."""
    old = before.condition(ConditionType.PROGRESSING)
    spoke = {Reason.WAITING_FOR_ROLLOUTS, *_TRAINED}
    if running and old and old.reason in spoke and before.attempt == attempt:
        stated = StatedCondition.unchanged(old)
        return TrainingStep(Changes(conditions=(stated,), requeue_after=seen.poll_seconds), attempt, "training")
    waits = first_problem(pods) or servers.waiting_for
    if run.spec.trainer.command is not None and running and not waits:
        text = "the command of spec.trainer runs. It serves no GET /progress, so nothing is known of its steps"
        return _progressing(seen, attempt, Reason.TRAINING, text, phase="training")
    waits = waits or "the trainer is starting"
    stated = true_condition(ConditionType.PROGRESSING, _starting_reason(servers), waits)
    pause = _start_poll(seen) if running else _IDLE_POLL_SECONDS
    return TrainingStep(Changes(conditions=(stated,), requeue_after=pause), attempt, "starting")


def _startup_failed(
    seen: Observation, servers: ServersStep, pods: list[Object], attempt: int, deadline: int
) -> TrainingStep:
    problem = first_overdue(pods, seen.now) or first_problem(pods)
    why = servers.waiting_for or problem or "the trainer pushed no weights"
    if problem and problem not in why:
        why = f"{why}; {problem}"
    text = f"not started within {deadline} s (startupDeadlineSeconds): {why}{quoted_tails(seen)}"
    return TrainingStep(Changes(), attempt, "starting", seen.progress, Failure(Reason.STARTUP_DEADLINE_EXCEEDED, text))
