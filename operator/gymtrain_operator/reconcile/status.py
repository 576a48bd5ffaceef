"""The status, computed once from what the steps of the plan found."""

from collections.abc import Collection
from dataclasses import dataclass, field

from gymtrain_api.condition_table import CONDITIONS, reason_row
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import Condition, GymTrainingRunStatus, Images, Progress, ServerStatus, WeightSyncStatus
from gymtrain_operator.reconcile.changes import Failure
from gymtrain_operator.reconcile.conditions import Claim, holds, is_true, says, settle
from gymtrain_operator.reconcile.lifecycle import Clock
from gymtrain_operator.reconcile.times import to_text


@dataclass(frozen=True)
class Facts:
    """What the steps of a plan found out; the rest of the status follows.

    Attributes:
        claims: conditions; those left out are waiting for their turn.
        disrupted_attempts: None where they were not looked at, and are as before.
        images: None before preflight has passed.
        end: the failure that ends the run, or True for completion; None while it goes on.
    """

    clock: Clock
    claims: tuple[Claim, ...] = ()
    attempt: int | None = None
    disrupted_attempts: tuple[int, ...] | None = None
    preflight_hash: str | None = None
    images: Images | None = None
    weight_sync: WeightSyncStatus | None = None
    progress: Progress | None = None
    servers: tuple[ServerStatus, ...] = field(default=())
    end: Failure | bool | None = None


def build(before: GymTrainingRunStatus, facts: Facts, generation: int, now: float) -> GymTrainingRunStatus:
    """The next status. The same facts give the same status, whenever they are seen."""
    claims = {kind: says(kind, words) for kind, row in CONDITIONS.items() if (words := row.waits)}
    claims |= {claim.type: claim for claim in facts.claims}
    if facts.end is not None:
        claims |= {claim.type: claim for claim in _last_words(facts.end, facts.progress, claims)}
    disrupted = before.disrupted_attempts if facts.disrupted_attempts is None else facts.disrupted_attempts
    conditions = settle(before, claims.values(), generation, to_text(now))
    return GymTrainingRunStatus(
        observed_generation=generation,
        state=state_of(conditions),
        attempt=facts.attempt,
        start_time=facts.clock.start_time,
        completion_time=None if facts.end is None else before.completion_time or to_text(now),
        suspended_seconds=facts.clock.suspended_seconds,
        disrupted_attempts=list(disrupted),
        preflight_hash=facts.preflight_hash,
        images=facts.images,
        conditions=conditions,
        weight_sync=facts.weight_sync,
        progress=facts.progress,
        servers=list(facts.servers) if facts.end is None else [],
    )


def amended(before: GymTrainingRunStatus, claim: Claim, generation: int, now: float) -> GymTrainingRunStatus:
    """The status before with one condition of it said anew; what else it tells is as it was last seen."""
    (told,) = settle(before, [claim], generation, to_text(now))
    conditions = [told if condition.type == told.type else condition for condition in before.conditions]
    if told not in conditions:
        conditions.append(told)
    state = before.state or state_of(conditions)
    return before.model_copy(update={"observed_generation": generation, "conditions": conditions, "state": state})


def _last_words(end: Failure | bool, progress: Progress | None, said: Collection[ConditionType]) -> list[Claim]:
    claims = [says(kind, words) for kind in said if (words := CONDITIONS[kind].ended)]
    if isinstance(end, Failure):
        return [*claims, holds(ConditionType.FAILED, end.reason, end.message)]
    steps = f"{progress.step} steps" if progress else "training ended"
    reward = f", reward {progress.reward}" if progress and progress.reward is not None else ""
    return [*claims, holds(ConditionType.COMPLETE, Reason.TRAINING_COMPLETED, f"{steps}{reward}")]


def state_of(conditions: list[Condition]) -> str:
    """One word for `kubectl get`."""
    status = GymTrainingRunStatus(conditions=conditions)
    progressing = next((c.reason for c in conditions if c.type == ConditionType.PROGRESSING), "")
    for kind, word in (
        (ConditionType.FAILED, "Failed"),
        (ConditionType.COMPLETE, "Complete"),
        (ConditionType.SUSPENDED, "Suspended"),
    ):
        if is_true(status, kind):
            return word
    if not is_true(status, ConditionType.PREFLIGHT_PASSED):
        return "Preflight"
    return reason_row(progressing).state
