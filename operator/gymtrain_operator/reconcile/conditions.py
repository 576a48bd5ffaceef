"""Conditions of a run: changed only where something changed, so that their times tell the truth."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from gymtrain_api.condition_table import ConditionStatus, Words
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import Condition, GymTrainingRunStatus

MAX_MESSAGE = 3000  # characters


@dataclass(frozen=True)
class StatedCondition:
    """What the plan says about one condition; its time follows from the condition before."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str = ""

    @classmethod
    def unchanged(cls, condition: Condition) -> Self:
        """States a condition as it was before."""
        return cls(ConditionType(condition.type), condition.status, Reason(condition.reason), condition.message)

    @classmethod
    def of_table(cls, kind: ConditionType, words: Words) -> Self:
        """States a condition in words of the table of conditions."""
        return cls(kind, words.status, words.reason, words.message)


def true_condition(kind: ConditionType, reason: Reason, message: str = "") -> StatedCondition:
    """States that a condition is True."""
    return StatedCondition(kind, "True", reason, message)


def false_condition(kind: ConditionType, reason: Reason, message: str = "") -> StatedCondition:
    """States that a condition is False."""
    return StatedCondition(kind, "False", reason, message)


def unknown_condition(kind: ConditionType, reason: Reason, message: str = "") -> StatedCondition:
    """States that a condition is Unknown."""
    return StatedCondition(kind, "Unknown", reason, message)


def next_conditions(
    before: GymTrainingRunStatus, stated: Iterable[StatedCondition], generation: int, now: str
) -> list[Condition]:
    """Returns the new list of conditions: one for each type that is stated, in the order of `ConditionType`; where a
    type is stated twice the last counts.

    `lastTransitionTime` is kept while the status stays the same.
    """
    by_type = {one.type: one for one in stated}
    result = []
    for kind in ConditionType:
        new = by_type.get(kind)
        if new is None:
            continue
        old = before.condition(kind)
        same = old is not None and old.status == new.status
        result.append(
            Condition(
                type=kind,
                status=new.status,
                reason=new.reason,
                message=shorten(new.message),
                last_transition_time=old.last_transition_time if same and old else now,
                observed_generation=generation,
            )
        )
    return result


def shorten(text: str, limit: int = MAX_MESSAGE) -> str:
    """Returns `text` in at most `limit` characters: the middle is left out, since errors name the cause at the start
    and the last lines of a log at the end."""
    if len(text) <= limit:
        return text
    cut = " [...] "
    head = (limit - len(cut)) // 2
    return text[:head] + cut + text[-(limit - len(cut) - head) :]
