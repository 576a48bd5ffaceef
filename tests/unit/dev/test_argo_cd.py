"""The health check for Argo CD, run by Lua 5.1 on statuses that the operator's own plan makes."""

from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime

from dev.settings import REPOSITORY
from gymtrain_api import wiring
from gymtrain_api.condition_table import REASONS
from gymtrain_api.conditions import ConditionType, Reason
from tests.support.kueue_world import admit, queued
from tests.support.world import World

PATCH = REPOSITORY / "docs" / "argocd" / "argocd-cm.yaml"
KEY = "resource.customizations.health.gymtrain.dev_GymTrainingRun"
# What Argo CD opens for a script of argocd-cm: not string, math, io, debug (util/lua/lua.go, VM.runLua).
MISTAKE = wiring.TrainerPreflight(findings=[wiring.Finding(where="model", message="row 3 has no agent_ref")])
_CLOSED = ("string", "math", "io", "debug", "coroutine")


def health(run: dict[str, Any]) -> tuple[str, str]:
    """Status and message, as Argo CD would have them."""
    lua = LuaRuntime(unpack_returned_tuples=True)
    assert lua.lua_version == (5, 1)  # gopher-lua's
    lua.execute("getmetatable('').__index = nil")
    for library in _CLOSED:
        lua.globals()[library] = None
    lua.globals()["obj"] = lua.table_from(run, recursive=True)
    said = dict(lua.execute(yaml.safe_load(PATCH.read_text())["data"][KEY]))
    assert said.keys() == {"status", "message"}
    assert isinstance(said["message"], str)
    return said["status"], said["message"]


def read(world: World) -> dict[str, Any]:
    """The run as the API server would show it."""
    status = world.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"metadata": {"name": world.name, "generation": world.generation}, "spec": world.spec, "status": status}


def test_a_run_that_no_operator_has_seen_progresses() -> None:
    run = {"metadata": {"name": "run", "generation": 1}, "spec": {}}
    assert health(run) == ("Progressing", "the operator has not seen this version of the spec yet")


def test_a_run_in_preflight_progresses() -> None:
    world = World()
    world.reconcile()
    assert health(read(world))[0] == "Progressing"
    assert health(read(world))[1].startswith("Preflight, PreflightRunning")


def test_a_run_whose_servers_start_progresses() -> None:
    world = World().to_servers()
    world.reconcile(1)
    status, message = health(read(world))
    assert status == "Progressing"
    assert message.startswith(f"Starting, {world.condition(ConditionType.PROGRESSING).reason}")


def test_a_run_that_trains_progresses_and_says_how_far_it_is() -> None:
    world = World().to_training(step=4)
    status, message = health(read(world))
    assert status == "Progressing"
    assert message == f"Training, Training: {world.condition(ConditionType.PROGRESSING).message}"


def test_a_run_in_a_queue_progresses_and_says_what_it_waits_for() -> None:
    world = queued()
    world.reconcile(1)
    status, message = health(read(world))
    assert (status, message.partition(":")[0]) == ("Progressing", "Queued, WaitingForQuota")
    world = admit(world)
    world.reconcile(1)
    assert health(read(world))[0] == "Progressing"


def test_a_suspended_run_is_suspended() -> None:
    world = World().to_training(step=4)
    world.change(suspend=True)
    world.reconcile(5)
    assert health(read(world))[0] == "Suspended"


def test_a_resumed_run_progresses_again() -> None:
    world = World().to_training(step=4)
    world.change(suspend=True)
    world.reconcile(5)
    world.seen.clear()
    world.change(suspend=False)
    world.reconcile(5)
    assert health(read(world))[0] == "Progressing"


def test_a_complete_run_is_healthy() -> None:
    world = World().to_training(step=10)
    world.trainer_ends(0)
    world.reconcile(5)
    status, message = health(read(world))
    assert (status, message.partition(":")[0]) == ("Healthy", "TrainingCompleted")


def test_a_run_that_preflight_refuses_is_degraded_with_the_mistake() -> None:
    world = World()
    world.reconcile()
    world.preflight_ends(trainer=MISTAKE)
    world.reconcile(5)
    status, message = health(read(world))
    assert (status, message.partition(":")[0]) == ("Degraded", "PreflightFailed")
    assert "row 3" in message


def test_a_refused_run_that_was_corrected_is_not_degraded_until_the_operator_looks() -> None:
    world = World()
    world.reconcile()
    world.preflight_ends(trainer=MISTAKE)
    world.reconcile(5)
    world.change(suspend=False)
    assert health(read(world))[0] == "Progressing"


def test_a_run_that_is_being_deleted_progresses_whatever_it_was() -> None:
    world = World().to_training(step=10)
    world.trainer_ends(0)
    world.reconcile(5)
    run = read(world)
    run["metadata"]["deletionTimestamp"] = "2026-11-24T12:00:00Z"
    assert health(run) == ("Progressing", "the run is being deleted")


def conditions(**statuses: tuple[str, str, str]) -> dict[str, Any]:
    listed = [
        {"type": kind, "status": status, "reason": reason, "message": message}
        for kind, (status, reason, message) in statuses.items()
    ]
    return {"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "state": "X", "conditions": listed}}


def test_an_alarm_does_not_degrade_a_run_but_is_told() -> None:
    run = conditions(
        PreflightPassed=("True", "PreflightPassed", ""),
        Progressing=("True", "Training", "step 4 of 10"),
        Healthy=("False", "KLHigh", "KL 0.3"),
    )
    assert health(run) == ("Progressing", "X, Training: step 4 of 10; alarm KLHigh: KL 0.3")


@pytest.mark.parametrize("reason", sorted({*REASONS, *Reason}))
def test_no_reason_alone_ends_a_run(reason: str) -> None:
    for status in ("True", "False", "Unknown"):
        run = conditions(PreflightPassed=("True", "PreflightPassed", ""), Progressing=(status, reason, ""))
        assert health(run) == ("Progressing", f"X, {reason}")


@pytest.mark.parametrize(
    ("kind", "expected"), [("Failed", "Degraded"), ("Complete", "Healthy"), ("Suspended", "Suspended")]
)
def test_a_condition_without_a_message_is_told_by_its_reason(kind: str, expected: str) -> None:
    assert health(conditions(**{kind: ("True", "SomeReason", "")})) == (expected, "SomeReason")


def test_a_failure_counts_before_all_else() -> None:
    run = conditions(
        Suspended=("True", "Suspended", ""),
        Complete=("False", "Running", ""),
        Failed=("True", "BackoffLimitExceeded", "out of memory"),
    )
    assert health(run) == ("Degraded", "BackoffLimitExceeded: out of memory")
