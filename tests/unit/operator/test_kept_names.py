"""Runs that a release with other names began: nothing of them is made a second time under a new name."""

import json

import pytest

from gymtrain_api import labels, names
from gymtrain_api.sandboxes import SandboxBackend
from tests.support.policies import lets_out
from tests.support.world import World, applied, deleted

RUN = "reasoning-gym"
"""Its Gym servers have another name since."""

WITH_PODS = ("Deployment", "Job", "Pod", "Service")


def _with_dashes(run: str, server: str) -> str:
    return f"{run}-gym-{server.replace('_', '-')}"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A run that trains, as the release before left it."""
    backend: SandboxBackend = "Pod"
    world = World(RUN, sandboxes={"backend": backend})
    with monkeypatch.context() as patch:
        patch.setattr(names, "gym_server", _with_dashes)
        patch.setattr(names, "broker_identity", lambda run, uid: f"{run}-broker")
        patch.setattr(names, "network_policy", lambda run: run)
        world.to_training()
    del world.objects["Service"][f"{RUN}-broker"]["metadata"]["annotations"][labels.BROKER_IDENTITY]
    del world.objects["NetworkPolicy"][f"{RUN}-gym"]
    return world


def _secrets(world: World) -> set[str]:
    """Secrets with the broker's token."""
    pods = [one["spec"]["template"]["spec"] for kind in ("Deployment", "Job") for one in world.objects[kind].values()]
    volumes = [volume for pod in pods for volume in pod["volumes"] if "secret" in volume]
    return {volume["secret"]["secretName"] for volume in volumes if volume["name"] == "broker-token"}


def test_the_names_differ() -> None:
    assert names.gym_server(RUN, "math") != _with_dashes(RUN, "math")


def test_an_upgrade_makes_no_second_set_of_servers(world: World) -> None:
    done = world.reconcile(5)
    assert applied(done) == [f"NetworkPolicy/{RUN}-servers"]
    assert deleted(done) == []


def test_the_fence_under_the_old_name_goes_when_the_new_one_stands(world: World) -> None:
    world.reconcile(5)
    assert deleted(world.reconcile(5)) == [f"NetworkPolicy/{RUN}"]
    assert world.existing("NetworkPolicy") == [
        f"{RUN}-{part}" for part in ("broker", "sandboxes", "servers", "training")
    ]
    world.settle(5)


def test_gym_servers_that_reached_everything_still_do(world: World) -> None:
    """Their judge may be anywhere, and nobody asked whether."""
    world.settle(5)
    policies = list(world.objects["NetworkPolicy"].values())
    assert lets_out(policies, labels.run_labels(RUN, labels.Role.GYM), "93.184.215.14", 443)
    assert not lets_out(policies, labels.run_labels(RUN, labels.Role.GYM), "169.254.169.254", 80)


def test_the_next_attempt_mounts_the_token_that_the_broker_has(world: World) -> None:
    world.reconcile(5)
    world.trainer_ends(1)
    world.reconcile()
    assert f"Job/{RUN}-trainer-2" in applied(world.reconcile(11))
    assert _secrets(world) == {f"{RUN}-broker"}


def test_a_run_that_resumes_finds_its_servers_under_the_names_that_it_knows(world: World) -> None:
    world.reconcile(5)
    before = world.existing("Service")
    world.change(suspend=True)
    world.reconcile(5)
    world.change(suspend=False)
    world.settle(5)
    assert world.existing("Service") == before
    assert f"{RUN}-gym-math" in world.existing("Deployment")
    config = json.loads(world.objects["ConfigMap"][f"{RUN}-run"]["data"]["run.json"])
    assert config["agents"] == {"math_agent": f"http://{RUN}-gym-math-agent:8000"}
    assert _secrets(world) == {f"{RUN}-broker"}


def test_a_server_that_was_deleted_comes_back_under_its_name(world: World) -> None:
    world.settle(5)
    del world.objects["Deployment"][f"{RUN}-gym-math"]
    assert applied(world.reconcile(5)) == [f"Deployment/{RUN}-gym-math"]
