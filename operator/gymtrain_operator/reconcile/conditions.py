"""Conditions: changed only where something changed, so that their times tell the truth."""

from collections.abc import Iterable
from dataclasses import dataclass

from gymtrain_api.condition_table import ConditionStatus, Words
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import Condition, GymTrainingRunStatus

MAX_MESSAGE = 3000  # characters


@dataclass(frozen=True)
class Claim:
    """What the plan says about one condition; its time follows from the condition before."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str = ""


def holds(kind: ConditionType, reason: Reason, message: str = "") -> Claim:
    """The condition holds."""
    return Claim(kind, "True", reason, message)


def lacks(kind: ConditionType, reason: Reason, message: str = "") -> Claim:
    """The condition doesn't hold."""
    return Claim(kind, "False", reason, message)


def unknown(kind: ConditionType, reason: Reason, message: str = "") -> Claim:
    """It isn't known yet whether the condition holds."""
    return Claim(kind, "Unknown", reason, message)


def says(kind: ConditionType, words: Words) -> Claim:
    """The condition says what the table has it say."""
    return Claim(kind, words.status, words.reason, words.message)


def find(status: GymTrainingRunStatus, kind: ConditionType) -> Condition | None:
    """The condition of that type, or None."""
    return next((c for c in status.conditions if c.type == kind), None)


def is_true(status: GymTrainingRunStatus, kind: ConditionType) -> bool:
    """Whether the condition stands at True."""
    found = find(status, kind)
    return found is not None and found.status == "True"


def settle(before: GymTrainingRunStatus, claims: Iterable[Claim], generation: int, now: str) -> list[Condition]:
    """The new list of conditions: one for each claim, in the order of `ConditionType`.

    `lastTransitionTime` is kept while the status stays the same.
    """
    by_type = {claim.type: claim for claim in claims}
    result = []
    for kind in ConditionType:
        claim = by_type.get(kind)
        if claim is None:
            continue
        old = find(before, kind)
        same = old is not None and old.status == claim.status
        result.append(
            Condition(
                type=kind,
                status=claim.status,
                reason=claim.reason,
                message=shorten(claim.message),
                last_transition_time=old.last_transition_time if same and old else now,
                observed_generation=generation,
            )
        )
    return result


def shorten(text: str, limit: int = MAX_MESSAGE) -> str:
    """`text` in at most `limit` characters: the middle is left out, since errors name the cause at the start
    and the last lines of a log at the end."""
    if len(text) <= limit:
        return text
    cut = " [...] "
    head = (limit - len(cut)) // 2
    return text[:head] + cut + text[-(limit - len(cut) - head) :]
