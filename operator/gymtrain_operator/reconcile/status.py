"""The status, computed once from what the steps of the plan found."""

from collections.abc import Collection
from dataclasses import dataclass, field

from gymtrain_api.condition_table import CONDITIONS, reason_row
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.defaults import AppliedDefaults
from gymtrain_api.status import Condition, GymTrainingRunStatus, Images, Progress, ServerStatus, WeightSyncStatus
from gymtrain_api.times import to_text
from gymtrain_operator.reconcile.changes import Failure
from gymtrain_operator.reconcile.conditions import StatedCondition, next_conditions, true_condition
from gymtrain_operator.reconcile.lifecycle import RunTimes


@dataclass(frozen=True)
class Facts:
    """What the steps of a plan found out; the rest of the status follows.

    Attributes:
        conditions: those left out are waiting for their turn.
        disrupted_attempts: None where they were not looked at, and are as before.
        images: None before preflight has passed.
        defaults: None where cluster and namespace have none.
        end: the failure that ends the run, or True for completion; None while it runs.
    """

    times: RunTimes
    conditions: tuple[StatedCondition, ...] = ()
    attempt: int | None = None
    disrupted_attempts: tuple[int, ...] | None = None
    preflight_hash: str | None = None
    images: Images | None = None
    defaults: AppliedDefaults | None = None
    weight_sync: WeightSyncStatus | None = None
    progress: Progress | None = None
    servers: tuple[ServerStatus, ...] = field(default=())
    end: Failure | bool | None = None


def build(before: GymTrainingRunStatus, facts: Facts, generation: int, now: float) -> GymTrainingRunStatus:
    """Builds the next status. The same facts give the same status, whenever they are seen."""
    stated = {kind: StatedCondition.of_table(kind, words) for kind, row in CONDITIONS.items() if (words := row.waits)}
    stated |= {one.type: one for one in facts.conditions}
    if facts.end is not None:
        stated |= {one.type: one for one in _at_the_end(facts.end, facts.progress, stated)}
    disrupted = before.disrupted_attempts if facts.disrupted_attempts is None else facts.disrupted_attempts
    conditions = next_conditions(before, stated.values(), generation, to_text(now))
    return GymTrainingRunStatus(
        observed_generation=generation,
        state=state_of(conditions),
        attempt=facts.attempt,
        start_time=facts.times.start_time,
        completion_time=None if facts.end is None else before.completion_time or to_text(now),
        suspended_seconds=facts.times.suspended_seconds,
        disrupted_attempts=list(disrupted),
        preflight_hash=facts.preflight_hash,
        images=facts.images,
        defaults=facts.defaults,
        conditions=conditions,
        weight_sync=facts.weight_sync,
        progress=facts.progress,
        servers=list(facts.servers) if facts.end is None else [],
    )


def with_condition(
    before: GymTrainingRunStatus, stated: StatedCondition, generation: int, now: float
) -> GymTrainingRunStatus:
    """Returns the status before with one condition stated again; the rest of it is as it was last seen."""
    (new,) = next_conditions(before, [stated], generation, to_text(now))
    conditions = [new if condition.type == new.type else condition for condition in before.conditions]
    if new not in conditions:
        conditions.append(new)
    state = before.state or state_of(conditions)
    return before.model_copy(update={"observed_generation": generation, "conditions": conditions, "state": state})


def _at_the_end(
    end: Failure | bool, progress: Progress | None, stated: Collection[ConditionType]
) -> list[StatedCondition]:
    """States the conditions of a run that has ended, of those that it had."""
    conditions = [StatedCondition.of_table(kind, words) for kind in stated if (words := CONDITIONS[kind].ended)]
    if isinstance(end, Failure):
        return [*conditions, true_condition(ConditionType.FAILED, end.reason, end.message)]
    if progress is None:
        return [*conditions, true_condition(ConditionType.COMPLETE, Reason.TRAINING_COMPLETED, "training ended")]
    parts = [f"{progress.step} steps"]
    if progress.reward is not None:
        parts.append(f"reward {progress.reward}")
    if progress.validation_reward is not None:
        parts.append(f"validation reward {progress.validation_reward} at step {progress.validation_step}")
    if progress.best_validation_reward is not None:
        parts.append(f"best {progress.best_validation_reward} at step {progress.best_step}")
    return [*conditions, true_condition(ConditionType.COMPLETE, Reason.TRAINING_COMPLETED, ", ".join(parts))]


def state_of(conditions: list[Condition]) -> str:
    """Sums the conditions up in one word for `kubectl get`."""
    status = GymTrainingRunStatus(conditions=conditions)
    for kind, word in (
        (ConditionType.FAILED, "Failed"),
        (ConditionType.COMPLETE, "Complete"),
        (ConditionType.SUSPENDED, "Suspended"),
    ):
        if status.is_true(kind):
            return word
    if not status.is_true(ConditionType.PREFLIGHT_PASSED):
        return "Preflight"
    progressing = status.condition(ConditionType.PROGRESSING)
    return reason_row(progressing.reason if progressing else "").state
