"""The trainer's and vLLM's pods of a run as a group that a scheduler places together."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.world import DEFAULTS, World, applied

LABEL = "scheduling.x-k8s.io/pod-group"


def gang(name: str = "run", scheduler: str = "gangs", **blocks: Any) -> World:
    world = World(name, **blocks)
    world.defaults = replace(DEFAULTS, gang_scheduler=scheduler)
    return world


def templates(world: World) -> dict[str, dict[str, Any]]:
    """Pod templates by the name of what makes the pods."""
    makers = [*world.objects["Deployment"].values(), *world.objects["Job"].values()]
    found = {maker["metadata"]["name"]: maker["spec"]["template"] for maker in makers}
    for name, group in world.objects.get("LeaderWorkerSet", {}).items():
        found[name] = group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
        found[f"{name}-workers"] = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return found


def grouped(world: World) -> dict[str, tuple[str, str]]:
    """Group and scheduler of the templates that have one of them."""
    found = {
        name: (one["metadata"]["labels"].get(LABEL, ""), one["spec"].get("schedulerName", ""))
        for name, one in templates(world).items()
    }
    return {name: pair for name, pair in found.items() if any(pair)}


def least(world: World) -> int:
    number: int = world.objects["PodGroup"]["run-gang"]["spec"]["minMember"]
    return number


def test_trainer_and_vllm_are_one_group_and_what_needs_no_gpus_is_not_in_it() -> None:
    world = gang(trainer={"nodes": 2, "gpus": 8}, inference={"replicas": 3, "gpus": 1}).to_servers()
    assert grouped(world) == dict.fromkeys(("run-inference", "run-trainer-1"), ("run-gang", "gangs"))
    assert least(world) == 2 + 3
    (owner,) = world.objects["PodGroup"]["run-gang"]["metadata"]["ownerReferences"]
    assert owner["uid"] == world.uid


def test_all_pods_of_servers_with_several_are_in_the_group() -> None:
    world = gang(trainer={"gpus": 1}, inference={"nodes": 2, "replicas": 2, "gpus": 8}).to_servers()
    members = ("run-vllm", "run-vllm-workers", "run-trainer-1")
    assert grouped(world) == dict.fromkeys(members, ("run-gang", "gangs"))
    assert least(world) == 1 + 2 * 2


def test_the_group_is_there_before_its_pods() -> None:
    world = gang()
    world.reconcile()
    world.preflight_ends()
    written = applied(world.reconcile(5))
    group = written.index("PodGroup/run-gang")
    assert group < written.index("Deployment/run-inference")
    assert group < written.index("Job/run-trainer-1")


def test_without_the_setting_there_is_no_group() -> None:
    world = gang(scheduler="").to_servers()
    assert (grouped(world), world.existing("PodGroup")) == ({}, [])


@pytest.mark.parametrize(("before", "after"), [("", "gangs"), ("gangs", "")])
def test_a_run_under_way_keeps_its_pods_when_the_setting_changes(before: str, after: str) -> None:
    """And the next attempt's pods are in no group whose other members are not."""
    world = gang(scheduler=before).to_training()
    world.defaults = replace(DEFAULTS, gang_scheduler=after)
    assert applied(world.reconcile(60)) == []
    world.trainer_ends(1)
    world.settle(60)
    assert "run-trainer-2" in templates(world)
    assert "run-trainer-2" not in grouped(world)


def test_the_next_attempt_is_in_the_group() -> None:
    world = gang().to_training()
    world.trainer_ends(1)
    world.settle(60)
    assert grouped(world)["run-trainer-2"] == ("run-gang", "gangs")


def test_a_run_that_is_resumed_is_placed_together() -> None:
    world = gang(scheduler="").to_training()
    world.defaults = replace(DEFAULTS, gang_scheduler="gangs")
    world.change(suspend=True)
    world.settle(60)
    world.change(suspend=False)
    world.settle(60)
    assert grouped(world)["run-inference"] == ("run-gang", "gangs")
    assert least(world) == 2


def test_a_run_that_is_resumed_with_more_servers_is_placed_with_all_of_them() -> None:
    world = gang().to_training()
    world.change(suspend=True)
    world.settle(60)
    world.change(suspend=False, inference={"replicas": 5})
    world.settle(60)
    assert least(world) == 1 + 5


def test_servers_that_are_added_wait_for_nobody_and_a_group_that_shrinks_wants_fewer() -> None:
    world = gang(inference={"replicas": 3}).to_training()
    world.change(inference={"replicas": 5})
    world.settle(60)
    assert least(world) == 1 + 3
    world.change(inference={"replicas": 1})
    written = applied(world.reconcile(60))
    assert "PodGroup/run-gang" in written
    assert least(world) == 1 + 1


def test_a_group_that_somebody_deletes_is_made_again() -> None:
    world = gang().to_training()
    del world.objects["PodGroup"]["run-gang"]
    assert applied(world.reconcile(60)) == ["PodGroup/run-gang"]


def test_who_names_a_group_of_their_own_keeps_to_it() -> None:
    template = {"metadata": {"labels": {LABEL: "mine"}}, "spec": {"schedulerName": "other"}}
    world = gang(trainer={"template": template}, inference={"template": template}).to_training()
    assert grouped(world) == dict.fromkeys(("run-inference", "run-trainer-1"), ("mine", "other"))
    assert applied(world.reconcile(60)) == []
