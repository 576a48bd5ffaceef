"""A trainer of the user's own, by spec.trainer.command: how it is started, and what the run says of it."""

from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_operator.manifests.context import Defaults
from tests.support.world import World

COMMAND = ["/opt/train", "--nodes", "$(GYMTRAIN_NODES)"]


def _world(**trainer: Any) -> World:
    return World(trainer={"image": "mine:1", "command": COMMAND, **trainer})


def _main(world: World) -> dict[str, Any]:
    containers = world.job["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = next(one for one in containers if one["name"] == "trainer")
    return found


def _trainer_runs(world: World) -> None:
    world.add_pod("run-trainer-1-0-abcde", labels.Role.TRAINER, {"phase": "Running"}, **{labels.ATTEMPT: "1"})


def test_the_job_starts_the_command_in_the_users_image() -> None:
    main = _main(_world().to_servers())
    assert (main["image"], main["command"]) == ("mine:1", COMMAND)


def test_the_command_finds_what_gymtrains_trainer_finds() -> None:
    ours, theirs = _main(World().to_servers()), _main(_world().to_servers())
    for part in ("env", "volumeMounts", "ports", "resources", "securityContext"):
        assert theirs[part] == ours[part], part


def test_node_0_of_the_attempt_is_named_in_the_environment() -> None:
    env = {one["name"]: one.get("value") for one in _main(_world(nodes=2).to_servers())["env"]}
    assert env["GYMTRAIN_MASTER_HOST"] == "run-trainer-1-0.run-trainer"


def test_gymtrains_own_image_fetches_the_model_and_checks_it() -> None:
    world = _world().to_servers()
    fetch = {one["name"]: one["image"] for one in world.job["spec"]["template"]["spec"]["initContainers"]}
    checks = {one["name"]: one["image"] for one in world.preflight_pod["spec"]["containers"]}
    assert (fetch["model"], checks["trainer"]) == ("trainer:1", "trainer:1")


def test_an_upgrade_of_the_operator_changes_neither_image() -> None:
    world = _world().to_servers()
    world.defaults = Defaults(trainer="trainer:2")
    world.trainer_ends(1)
    world.reconcile()
    world.reconcile(60)
    assert world.status.attempt == 2
    init = {one["name"]: one["image"] for one in world.job["spec"]["template"]["spec"]["initContainers"]}
    assert (_main(world)["image"], init["model"]) == ("mine:1", "trainer:1")


def test_a_command_that_serves_progress_is_shown_like_any_trainer() -> None:
    world = _world().to_training(step=3)
    assert world.status.progress is not None
    assert world.status.progress.step == 3
    assert world.condition(ConditionType.PROGRESSING).reason == Reason.TRAINING


def test_a_command_that_serves_no_progress_trains_once_the_servers_are_ready() -> None:
    world = _world().to_servers()
    world.servers_ready()
    _trainer_runs(world)
    world.reconcile(20)
    said = world.condition(ConditionType.PROGRESSING)
    assert said.reason == Reason.TRAINING
    assert "serves no GET /progress" in said.message
    assert world.status.progress is None


def test_it_is_starting_while_servers_are_missing() -> None:
    world = _world().to_servers()
    _trainer_runs(world)
    world.reconcile(20)
    assert world.condition(ConditionType.PROGRESSING).reason == Reason.WAITING_FOR_SERVERS


def test_a_silent_command_outlives_the_startup_deadline_once_the_servers_are_ready() -> None:
    world = _world().to_servers()
    world.servers_ready()
    _trainer_runs(world)
    world.reconcile(100_000)
    assert not world.status.is_true(ConditionType.FAILED)


def test_gymtrains_trainer_that_does_not_answer_is_still_starting() -> None:
    world = World().to_servers()
    world.servers_ready()
    _trainer_runs(world)
    world.reconcile(20)
    assert world.condition(ConditionType.PROGRESSING).reason == Reason.TRAINER_STARTING


@pytest.mark.parametrize("message", ["", "done\n"])
def test_exit_code_0_completes_the_run_without_a_report(message: str) -> None:
    world = _world().to_servers()
    world.servers_ready()
    world.trainer_ends(0, message)
    world.reconcile(5)
    assert world.status.is_true(ConditionType.COMPLETE)


def test_exit_code_78_ends_the_run_with_what_the_command_said() -> None:
    world = _world().to_servers()
    world.trainer_ends(78, "config.model must be set")
    world.reconcile(5)
    failed = world.condition(ConditionType.FAILED)
    assert failed.reason == Reason.TRAINER_REFUSED
    assert "config.model must be set" in failed.message
