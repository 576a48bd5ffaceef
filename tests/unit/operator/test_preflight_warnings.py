"""Warnings: the run goes on, and its user reads in the condition and in an event what it will cost him."""

from typing import Any

import pytest

from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.wiring import Finding
from gymtrain_operator.reconcile.events import events_between
from tests.support.world import GYM_VERDICT, TRAINER_VERDICT, World

KEPT: dict[str, Any] = {"checkpoint": {"claimName": "models"}}


def passed(world: World, **warnings: list[Finding]) -> World:
    """The run after preflight, whose containers warn so."""
    world.reconcile()
    world.preflight_ends(
        GYM_VERDICT.model_copy(update={"warnings": warnings.get("gym", [])}),
        TRAINER_VERDICT.model_copy(update={"warnings": warnings.get("trainer", [])}),
    )
    world.reconcile()
    return world


def told(world: World) -> tuple[str, str, str]:
    condition = world.condition(ConditionType.PREFLIGHT_PASSED)
    return condition.status, condition.reason, condition.message


def test_a_run_without_a_checkpoint_passes_and_is_told_that_its_model_is_not_kept() -> None:
    status, reason, message = told(passed(World()))
    assert (status, reason) == ("True", Reason.PREFLIGHT_PASSED)
    assert "\nwarning: spec.trainer.checkpoint: is not set, so the trained model isn't kept" in message


def test_a_run_that_costs_nothing_unexpected_has_no_warning() -> None:
    status, reason, message = told(passed(World(trainer=KEPT)))
    assert (status, reason) == ("True", Reason.PREFLIGHT_PASSED)
    assert "warning" not in message


@pytest.mark.parametrize(
    ("checkpoint", "ttl", "warned"),
    [
        ({"size": "10Gi", "retain": "Delete"}, 3600, True),
        ({"size": "10Gi", "retain": "Delete"}, None, False),
        ({"size": "10Gi"}, 3600, False),
        ({"claimName": "models"}, 3600, False),
    ],
)
def test_a_ttl_that_deletes_the_only_copy_of_the_model_is_told(
    checkpoint: dict[str, Any], ttl: int | None, warned: bool
) -> None:
    blocks: dict[str, Any] = {"trainer": {"checkpoint": checkpoint}}
    if ttl is not None:
        blocks["ttlSecondsAfterFinished"] = ttl
    _, _, message = told(passed(World(**blocks)))
    assert ("warning: spec.ttlSecondsAfterFinished: deletes the run 3600 s after its end" in message) is warned


@pytest.mark.parametrize(
    ("replicas", "cache", "warned"),
    [
        (4, {"size": "5Gi"}, True),
        (1, {"size": "5Gi"}, False),
        (4, {"size": "5Gi", "accessModes": ["ReadWriteMany"]}, False),
        (4, {"claimName": "compiled"}, False),  # nothing is known of it
    ],
)
def test_several_servers_on_a_compile_cache_for_one_node_are_told(
    replicas: int, cache: dict[str, Any], warned: bool
) -> None:
    _, _, message = told(passed(World(trainer=KEPT, inference={"replicas": replicas, "compileCache": cache})))
    text = "warning: spec.inference.compileCache.accessModes: all"
    assert (text in message) is warned


def test_the_containers_warnings_are_told_with_their_places_and_outlive_the_pod() -> None:
    world = passed(
        World(trainer=KEPT),
        gym=[Finding(where="pvc://rows/a.jsonl:3", message="has tools")],
        trainer=[Finding(where="spec.trainer.config.x", message="is unusual")],
    )
    world.objects["Pod"].clear()
    world.seen.clear()
    world.reconcile(60)
    _, _, message = told(world)
    lines = message.splitlines()[1:]
    assert lines == ["warning: pvc://rows/a.jsonl:3: has tools", "warning: spec.trainer.config.x: is unusual"]


def test_a_warning_is_one_warning_event_and_no_event_when_it_is_seen_again() -> None:
    world = World()
    world.reconcile()
    before = world.status
    world.preflight_ends()
    world.reconcile()
    passed, warned = [e for e in events_between(before, world.status) if e.reason.startswith("Preflight")]
    assert (passed.type, passed.reason, warned.type, warned.reason) == (
        "Normal",
        Reason.PREFLIGHT_PASSED,
        "Warning",
        Reason.PREFLIGHT_WARNED,
    )
    assert "spec.trainer.checkpoint" not in passed.note
    assert warned.note.startswith("spec.trainer.checkpoint: is not set")
    again = world.status
    world.reconcile(60)
    assert [e for e in events_between(again, world.status) if e.reason == Reason.PREFLIGHT_WARNED] == []


def test_what_keeps_a_run_from_starting_is_told_without_warnings() -> None:
    world = World()
    world.reconcile()
    world.preflight_ends(GYM_VERDICT.model_copy(update={"findings": [Finding(where="a", message="b")]}))
    world.reconcile()
    assert told(world) == ("False", Reason.PREFLIGHT_FAILED, "a: b")
