"""The table of conditions is whole: each type and reason has a row, each row is used, and a run says what it has."""

import ast
import importlib.util
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import pytest

from gymtrain_api import conditions
from gymtrain_api.condition_table import CONDITIONS, REASONS, Words, reason_row
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.status import GymTrainingRunStatus
from gymtrain_api.wiring import AlarmReason
from gymtrain_operator.reconcile.changes import Failure
from gymtrain_operator.reconcile.conditions import true_condition
from gymtrain_operator.reconcile.lifecycle import RunTimes
from gymtrain_operator.reconcile.status import Facts, build
from tests.support.world import World

NOTHING = GymTrainingRunStatus()
TIME = "2027-01-15T08:00:00Z"


def _sources() -> Iterator[ast.Module]:
    """What the operator and the trainer are made of."""
    for package in ("gymtrain_operator", "gymtrain_trainer"):
        found = importlib.util.find_spec(package)
        assert found is not None
        for folder in found.submodule_search_locations or ():
            yield from (ast.parse(file.read_text()) for file in Path(folder).rglob("*.py"))


def _named(enum: type[StrEnum]) -> set[str]:
    """Members of an enum of `conditions` that the sources name."""
    return {
        node.attr
        for source in _sources()
        if any(
            isinstance(node, ast.ImportFrom)
            and node.module == conditions.__name__
            and enum.__name__ in {one.name for one in node.names}
            for node in source.body
        )
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == enum.__name__
    }


def _words() -> Iterator[Words]:
    for row in CONDITIONS.values():
        yield from (words for words in (row.waits, row.suspended, row.ended) if words is not None)


def _said(status: GymTrainingRunStatus) -> dict[str, Words]:
    return {c.type: Words(c.status, Reason(c.reason), c.message) for c in status.conditions}


def test_every_type_and_every_reason_has_a_row() -> None:
    assert list(CONDITIONS) == list(ConditionType)
    assert set(REASONS) == set(Reason)


def test_every_row_says_what_it_means() -> None:
    meanings = [*(row.meaning for row in CONDITIONS.values()), *(row.meaning for row in REASONS.values())]
    assert [meaning for meaning in meanings if not meaning.endswith(".")] == []


def test_every_type_is_decided_somewhere() -> None:
    assert {kind.name for kind in ConditionType} - _named(ConditionType) == set()


def test_every_reason_is_given_somewhere() -> None:
    alarms = {Reason(value).name for value in get_args(AlarmReason.__value__)}
    given = _named(Reason) | {words.reason.name for words in _words()} | alarms
    assert {reason.name for reason in REASONS} - given == set()


def test_a_condition_hangs_on_a_block_that_the_spec_has() -> None:
    blocks = {row.block for row in CONDITIONS.values()} - {None}
    assert blocks <= set(GymTrainingRunSpec.model_fields)


def test_a_run_whose_steps_say_nothing_waits() -> None:
    status = build(NOTHING, Facts(times=RunTimes(TIME, None)), 1, 0.0)
    assert _said(status) == {kind: row.waits for kind, row in CONDITIONS.items() if row.waits}


@pytest.mark.parametrize("queue", ["", "team"], ids=["without a queue", "in a queue"])
@pytest.mark.parametrize("blocks", [{}, {"sandboxes": {}}], ids=["least", "with sandboxes"])
def test_a_suspended_run_says_so(blocks: dict[str, Any], queue: str) -> None:
    world = World(suspend=True, **blocks)
    world.queue = queue
    world.reconcile()
    rows = {kind: row for kind, row in CONDITIONS.items() if row.block is None or row.block in blocks}
    rows = {kind: row for kind, row in rows.items() if queue or not row.queued}
    assert _said(world.status) == {k: words for k, row in rows.items() if (words := row.suspended or row.waits)}


def test_an_ended_run_says_so_of_what_it_had() -> None:
    stated = tuple(true_condition(kind, Reason.RUNNING, "words") for kind in ConditionType)
    end = Failure(Reason.DEADLINE_EXCEEDED, "too long")
    said = _said(build(NOTHING, Facts(times=RunTimes(TIME, None), conditions=stated, end=end), 1, 0.0))
    assert said.pop(ConditionType.FAILED) == Words("True", end.reason, end.message)
    other = Words("True", Reason.RUNNING, "words")
    assert said == {k: row.ended or other for k, row in CONDITIONS.items() if k != ConditionType.FAILED}


def test_an_ended_run_says_nothing_of_what_it_never_had() -> None:
    status = build(NOTHING, Facts(times=RunTimes(TIME, None), end=True), 1, 0.0)
    assert set(_said(status)) == {kind for kind, row in CONDITIONS.items() if row.waits}


@pytest.mark.parametrize("reason", Reason)
def test_the_state_of_a_run_under_way_follows_from_the_reason(reason: Reason) -> None:
    stated = (
        true_condition(ConditionType.PREFLIGHT_PASSED, Reason.PREFLIGHT_PASSED),
        true_condition(ConditionType.PROGRESSING, reason),
    )
    status = build(NOTHING, Facts(times=RunTimes(TIME, None), conditions=stated), 1, 0.0)
    assert status.state == REASONS[reason].state


def test_a_reason_of_another_release_is_news_and_no_more() -> None:
    row = reason_row("OfAnotherRelease")
    assert (row.event, row.state, row.mendable) == ("Normal", "Starting", False)


def test_each_reason_that_is_bad_news_says_what_to_do() -> None:
    bad = {reason for reason, row in REASONS.items() if row.event == "Warning"}
    assert bad == {reason for reason, row in REASONS.items() if row.fix}
