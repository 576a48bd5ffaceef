"""The plan: from what was seen of a run to what to write, and what to say about it.

    deleting ─────────────► nothing: owner references collect
    ended ────────────────► servers gone; after the TTL the run itself
    spec not readable ────► before preflight has passed: Failed; later: all stays as it is, and the status says so
    suspended ────────────► all pods gone
    else  preflight ─passed─► queue ─admitted─► servers ─┬─► training ─► Complete
              │                 │ evicted: all pods gone │       │ attempts, backoff
              └─────────────────┴───── failure ◄─────────┴───────┘

Pure: the same observation always gives the same plan.
"""

from dataclasses import dataclass, replace

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.defaults import AppliedDefaults
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import GymTrainingRunStatus, Images
from gymtrain_operator.kinds import Object
from gymtrain_operator.manifests.context import Defaults, RunContext
from gymtrain_operator.reconcile import admission, lifecycle, preflight, record, servers, training, weight_sync
from gymtrain_operator.reconcile.attempts import current_attempt
from gymtrain_operator.reconcile.changes import Changes, Deletion, Failure, Update, sooner
from gymtrain_operator.reconcile.conditions import StatedCondition, false_condition
from gymtrain_operator.reconcile.defaulting import applied_defaults, shown
from gymtrain_operator.reconcile.events import Event, events_between
from gymtrain_operator.reconcile.immutable_fields import effective_spec, recorded_spec
from gymtrain_operator.reconcile.observation import Observation, is_deleting
from gymtrain_operator.reconcile.progress import health, notice_events, shown_progress
from gymtrain_operator.reconcile.rejections import fatal_rejection, waiting_condition
from gymtrain_operator.reconcile.status import Facts, build, with_condition
from gymtrain_operator.reconcile.upgrades import gang_scheduler, kept_names, outdated_policies, recorded_images
from gymtrain_operator.reconcile.writes import OwnerChange, Scaling, needed_writes, owner_changes

_PREFLIGHT_ONLY = f"preflight has passed, and the annotation {labels.PREFLIGHT_ONLY} keeps the run from more"


@dataclass(frozen=True)
class Plan:
    """What to do, in this order: owners, deletions, writes, scalings, updates, the status, then the events.

    Attributes:
        owners: objects that are to be the run's own, or no longer.
        record: new value of the run's annotation, written before the status; empty: it goes; None: it stays.
        requeue_after: seconds until the run must be looked at again though nothing happened.
        delete_run: the run's time to live is over.
    """

    status: GymTrainingRunStatus
    apply: tuple[Object, ...] = ()
    scale: tuple[Scaling, ...] = ()
    delete: tuple[Deletion, ...] = ()
    owners: tuple[OwnerChange, ...] = ()
    updates: tuple[Update, ...] = ()
    record: str | None = None
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    delete_run: bool = False


def plan(seen: Observation, defaults: Defaults) -> Plan:
    """Plans what to do about the run."""
    if seen.run.deleting:
        return Plan(seen.run.status)
    done = _next(seen, defaults)
    ended = lifecycle.has_ended(done.status)
    if not (ended and lifecycle.has_ended(seen.run.status)):  # what was written of an end stays, whichever release did
        status = done.status.model_copy(update={"inference": servers.inference_status(seen, ended=ended)})
        done = replace(done, status=status)
    return replace(
        done,
        delete=(*done.delete, *(Deletion.of(item) for item in seen.children.leftovers if not is_deleting(item))),
        owners=owner_changes(seen, done.status),
        record=record.updated_record(seen.run, done.status),
    )


def _next(seen: Observation, defaults: Defaults) -> Plan:
    before = lifecycle.reopened(seen.run.status, seen.run.generation)
    before = record.status_from_record(seen.run, before, seen.now)
    if lifecycle.has_ended(before):
        return _after_the_end(seen, before)
    if seen.run.spec is None:
        return _unreadable(seen, before)
    passed = seen.verdict is not None and before.is_true(ConditionType.PREFLIGHT_PASSED)
    recorded = recorded_spec(seen.children, seen.run.name) if passed else None
    applied = applied_defaults(seen, before, defaults, passed=passed)
    effective = effective_spec(seen.run.spec, recorded)
    lineage = seen.run.record.uid if seen.run.record else seen.run.uid
    run = RunContext(seen.run.name, seen.run.namespace, seen.run.uid, effective.spec, defaults, lineage=lineage)
    gang = gang_scheduler(seen.children, run)
    run = replace(run, kept=kept_names(seen.children, run.name), applied=applied, gang_scheduler=gang)
    verdict = preflight.standing_verdict(seen, run, before)
    run = replace(run, recorded=recorded_images(seen, run, verdict, before))
    if run.spec.suspend:
        return _suspended(seen, run, before, run.images if verdict else None)
    return _active(seen, run, before, effective.ignored)


def _unreadable(seen: Observation, before: GymTrainingRunStatus) -> Plan:
    """Plans for a spec that doesn't fit the types. Of a run under way it did once, so another release of the operator
    or of the CRD is at work: that must not end the running pods."""
    if not before.is_true(ConditionType.PREFLIGHT_PASSED):
        times = lifecycle.run_times(seen, before, idle=False)
        failure = Failure(Reason.INVALID_SPEC, seen.run.spec_error)
        return _ended(seen, before, Facts(times=times, attempt=before.attempt, progress=before.progress), failure)
    text = f"{seen.run.spec_error}. The run's pods stay unchanged until the operator can read its spec"
    unreadable = false_condition(ConditionType.PROGRESSING, Reason.INVALID_SPEC, text)
    status = with_condition(before, unreadable, seen.run.generation, seen.now)
    return Plan(status, events=events_between(seen.run.status, status))


def _after_the_end(seen: Observation, before: GymTrainingRunStatus) -> Plan:
    left = lifecycle.seconds_to_live(seen, before)
    status = before.model_copy(update={"observed_generation": seen.run.generation})
    if left is not None and left <= 0:
        return Plan(status, delete_run=True)
    failed = before.condition(ConditionType.FAILED)
    changes = lifecycle.tear_down(seen)
    freed = admission.finished(seen, failed=failed.message if failed and failed.status == "True" else "")
    return Plan(
        status,
        delete=changes.delete,
        updates=freed.updates,
        events=events_between(seen.run.status, status),  # the end is news where only the record knew of it
        requeue_after=sooner(left, changes.requeue_after),
    )


def _suspended(seen: Observation, run: RunContext, before: GymTrainingRunStatus, images: Images | None) -> Plan:
    passed = before.condition(ConditionType.PREFLIGHT_PASSED)
    conditions = lifecycle.suspended_conditions(seen, before)
    if passed is not None and passed.status == "True":
        conditions.append(StatedCondition.unchanged(passed))
    facts = Facts(
        times=lifecycle.run_times(seen, before, idle=True),
        conditions=tuple(conditions),
        attempt=current_attempt(seen, before) if before.attempt else None,
        preflight_hash=before.preflight_hash,
        images=images,
        defaults=shown(run.applied),
        progress=before.progress,
    )
    return _plan(seen, before, facts, lifecycle.stop_all(seen).and_then(admission.withdrawn(seen)))


def _active(seen: Observation, run: RunContext, before: GymTrainingRunStatus, ignored: tuple[str, ...]) -> Plan:
    times = lifecycle.run_times(seen, before, idle=False)
    suspension = (lifecycle.not_suspended(before),)
    defaults = shown(run.applied)
    facts = Facts(
        times=times, conditions=suspension, attempt=before.attempt, progress=before.progress, defaults=defaults
    )
    remaining = lifecycle.remaining_seconds(seen, run, times)
    if mistake := fatal_rejection(seen, before):
        return _ended(seen, before, replace(facts, images=before.images), mistake)

    check = preflight.step(seen, run, before, ignored)
    checked = check.changes.and_then(outdated_policies(seen.children, run))
    changes = checked.and_then(Changes(requeue_after=remaining))
    if check.verdict is None:
        facts = Facts(times=times, conditions=suspension + changes.conditions, defaults=defaults)
        if before.conditions:  # none: the run is new, or begins anew. Else its verdict may be lost, and all else isn't
            facts = replace(facts, attempt=before.attempt, progress=before.progress, images=before.images)
        if check.failure:
            return _ended(seen, before, facts, check.failure)
        if remaining is not None and remaining <= 0:
            return _ended(seen, before, facts, lifecycle.deadline_failure(run, before))
        return _plan(seen, before, facts, changes)

    if seen.run.preflight_only:
        told = false_condition(ConditionType.PROGRESSING, Reason.PREFLIGHT_ONLY, _PREFLIGHT_ONLY)
        conditions = (*suspension, *changes.conditions, told)
        facts = Facts(
            times=times,
            conditions=conditions,
            preflight_hash=check.verdict.hash,
            images=run.images,
            defaults=defaults,
        )
        return _plan(seen, before, facts, changes)

    asked = admission.step(seen, run, check.verdict, before)
    if asked.waits:  # no deadline counts
        changes = checked.and_then(asked.changes)
        facts = Facts(
            times=lifecycle.run_times(seen, before, idle=True),
            conditions=(*suspension, *changes.conditions),
            attempt=current_attempt(seen, before) if before.attempt else None,
            preflight_hash=check.verdict.hash,
            images=run.images,
            defaults=defaults,
            progress=before.progress,
        )
        if asked.failure:
            return _ended(seen, before, facts, asked.failure)
        return _plan(seen, before, facts, changes)
    run, changes = asked.run, changes.and_then(asked.changes)

    up = servers.step(seen, run, check.verdict, before)
    trained = training.step(seen, run, up, before)
    changes = changes.and_then(up.changes).and_then(trained.changes)
    if trained.phase == "training" and not up.waiting_for:
        changes = changes.and_then(admission.pods_ready(seen))
    facts = Facts(
        times=times,
        conditions=(*suspension, *changes.conditions, *health(trained.report, before)),
        attempt=trained.attempt,
        disrupted_attempts=trained.disrupted,
        preflight_hash=check.verdict.hash,
        images=run.images,
        defaults=defaults,
        weight_sync=weight_sync.with_version(up.weight_sync, trained.report),
        progress=shown_progress(trained.report, before.progress, seen.now),
        servers=up.statuses,
    )
    failure = up.failure or trained.failure
    if not failure and trained.phase != "complete" and remaining is not None and remaining <= 0:
        failure = lifecycle.deadline_failure(run, before)
    if failure or trained.phase == "complete":
        done = _ended(seen, before, facts, failure)
    else:
        done = _plan(seen, before, facts, changes)
    return replace(done, events=(*notice_events(before, trained.report), *done.events))


def _plan(seen: Observation, before: GymTrainingRunStatus, facts: Facts, changes: Changes) -> Plan:
    if blocked := waiting_condition(seen.rejections):
        facts = replace(facts, conditions=(*facts.conditions, blocked))
    writes, scalings = needed_writes(changes.apply, seen.children, resync=seen.resync, untouched=seen.untouched)
    status = build(before, facts, seen.run.generation, seen.now)
    requeue = sooner(changes.requeue_after, min((refused.next_in for refused in seen.rejections), default=None))
    events = events_between(seen.run.status, status)
    return Plan(
        status,
        writes,
        scalings,
        changes.delete,
        updates=changes.updates,
        events=events,
        requeue_after=requeue,
    )


def _ended(seen: Observation, before: GymTrainingRunStatus, facts: Facts, failure: Failure | None) -> Plan:
    status = build(before, replace(facts, end=failure or True), seen.run.generation, seen.now)
    changes = lifecycle.tear_down(seen)
    again = 1.0 if seen.run.spec and _looks_again(seen.run.spec, facts.defaults) else None
    return Plan(
        status,
        delete=changes.delete,
        updates=admission.finished(seen, failed=failure.message if failure else "").updates,
        events=events_between(seen.run.status, status),
        requeue_after=sooner(changes.requeue_after, again),
    )


def _looks_again(spec: GymTrainingRunSpec, defaults: AppliedDefaults | None) -> bool:
    """Whether something is left to do about an ended run."""
    return lifecycle.time_to_live(spec, defaults) is not None or spec.sandboxes is not None
