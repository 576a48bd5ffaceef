"""One release a run: an operator that is upgraded in the middle changes no image of it (decision 21)."""

from dataclasses import replace
from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_api.conditions import ConditionType, Reason
from gymtrain_api.status import Images
from gymtrain_operator.manifests.context import Defaults
from tests.support.world import DEFAULTS, World, applied, deleted

NEXT = Defaults(
    gym="gym:2",
    gateway="gateway:2",
    inference="inference:2",
    inference_gpu="inference-gpu:2",
    trainer="trainer:2",
    trainer_gpu="trainer-gpu:2",
    broker="broker:2",
    sandbox="sandbox:2",
    operator_namespace="gymtrain-system",
)
FIRST = replace(DEFAULTS, broker="broker:1", sandbox="sandbox:1")


def _world(**blocks: Any) -> World:
    world = World(**{"sandboxes": {"backend": "Pod"}, **blocks})
    world.defaults = FIRST
    return world


def _used(world: World) -> set[str]:
    """Every image of every pod, that of the sandboxes among them."""
    found = set()
    pods = [one["spec"]["template"] for kind in ("Deployment", "Job") for one in world.objects.get(kind, {}).values()]
    pods += [pod for name, pod in world.objects["Pod"].items() if "-preflight-" in name]
    for pod in pods:
        for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
            found.add(container["image"])
            found |= {env["value"] for env in container["env"] if env["name"] == "GYMTRAIN_SANDBOX_IMAGE"}
    return found


ALL_OF_FIRST = {"gym:1", "gateway:1", "inference:1", "trainer:1", "broker:1", "sandbox:1"}


def _of_an_earlier_release(world: World) -> World:
    """The same run as a release without the record has left it."""
    world.status = world.status.model_copy(update={"images": None})
    for pod in world.objects["Pod"].values():
        pod["metadata"].get("annotations", {}).pop(labels.IMAGES, None)
    return world


def test_the_images_are_recorded_when_preflight_passes() -> None:
    world = _world()
    world.reconcile()
    assert world.status.images is None
    world.preflight_ends()
    world.reconcile(5)
    assert world.status.images == Images(
        gym="gym:1",
        gateway="gateway:1",
        inference="inference:1",
        trainer="trainer:1",
        broker="broker:1",
        sandbox="sandbox:1",
    )
    assert _used(world) == ALL_OF_FIRST


def test_images_of_the_spec_are_recorded_in_the_defaults_stead() -> None:
    world = _world(inference={"gpus": 1}, trainer={"image": "mine:7"}).to_servers()
    assert world.status.images is not None
    assert (world.status.images.inference, world.status.images.trainer) == ("inference-gpu:1", "mine:7")


def test_the_next_attempt_after_an_upgrade_has_the_image_of_the_first() -> None:
    world = _world().to_training()
    world.defaults = NEXT
    world.trainer_ends(1)
    world.reconcile()
    assert applied(world.reconcile(11)) == ["Job/run-trainer-2"]
    assert _used(world) == ALL_OF_FIRST


def test_servers_that_are_made_again_after_an_upgrade_have_their_images() -> None:
    world = _world().to_training()
    world.defaults = NEXT
    world.change(gateway={"maxInFlight": 7}, inference={"resources": {}}, sandboxes={"maxConcurrent": 3})
    del world.objects["Deployment"]["run-gym-math"]
    written = [name for name in applied(world.reconcile(5)) if name.startswith("Deployment")]
    assert written == [
        "Deployment/run-broker",
        "Deployment/run-inference",
        "Deployment/run-gateway",
        "Deployment/run-gym-math",
    ]
    assert _used(world) == ALL_OF_FIRST


def test_a_run_that_is_suspended_over_an_upgrade_resumes_with_its_images() -> None:
    world = _world().to_training()
    world.change(suspend=True)
    world.reconcile(5)
    world.defaults = NEXT
    world.reconcile(5)
    assert world.existing("Deployment") == world.existing("Job") == []
    world.change(suspend=False)
    world.reconcile(5)
    assert _used(world) == ALL_OF_FIRST


def test_an_upgrade_while_preflight_runs_leaves_the_run_to_the_release_that_began() -> None:
    world = _world()
    world.reconcile()
    world.defaults = NEXT
    world.preflight_ends()
    world.reconcile(5)
    assert _used(world) == ALL_OF_FIRST


def test_a_record_that_was_not_written_is_made_from_the_preflight_pod() -> None:
    world = _world()
    world.reconcile()
    world.preflight_ends()
    before = world.status
    world.reconcile(5)
    world.status = before  # the operator ended before it wrote the status
    world.defaults = NEXT
    world.change(gateway={"maxInFlight": 7})
    world.reconcile(5)
    assert world.status.images is not None
    assert world.status.images.trainer == "trainer:1"
    assert _used(world) == ALL_OF_FIRST


def test_a_run_of_a_release_without_records_goes_on_with_what_runs() -> None:
    world = _of_an_earlier_release(_world().to_training())
    world.defaults = NEXT
    assert not [name for name in applied(world.reconcile(5)) if name.startswith(("Deployment", "Job"))]
    world.trainer_ends(1)
    world.reconcile()
    world.reconcile(11)
    world.change(gateway={"maxInFlight": 7}, sandboxes={"maxConcurrent": 3})
    world.reconcile(5)
    assert _used(world) == ALL_OF_FIRST


def test_an_image_of_one_gym_server_is_not_taken_for_that_of_all() -> None:
    servers = {"head_server": {"image": "head:1"}}
    world = _world(gym={"configPaths": ["a.yaml"], "servers": servers}).to_training()
    _of_an_earlier_release(world)
    world.defaults = NEXT
    world.reconcile(5)
    assert world.status.images is not None
    assert world.status.images.gym == "gym:1"


def test_what_runs_is_recorded_before_a_suspension_takes_it_away() -> None:
    world = _of_an_earlier_release(_world().to_training())
    world.defaults = NEXT
    world.change(suspend=True)
    world.reconcile(5)
    world.change(suspend=False)
    world.reconcile(5)
    assert _used(world) == ALL_OF_FIRST


def test_a_preflight_pod_of_a_release_without_records_is_made_again() -> None:
    """With which gateway and vLLM its verdict would go together is not known."""
    world = _world()
    world.reconcile()
    _of_an_earlier_release(world)
    world.defaults = NEXT
    done = world.reconcile(5)
    assert [name.rpartition("-")[0] for name in deleted(done)] == ["Pod/run-preflight"]
    world.reconcile(1)
    assert _used(world) == {"gym:2", "inference:2", "trainer:2"}
    world.preflight_ends()
    world.reconcile(5)
    assert _used(world) == {"gym:2", "gateway:2", "inference:2", "trainer:2", "broker:2", "sandbox:2"}


def test_a_run_that_failed_preflight_is_checked_again_with_the_release_of_its_second_try() -> None:
    world = _world()
    world.reconcile()
    world.preflight_ends(gym=None)
    world.reconcile(5)
    assert world.condition(ConditionType.FAILED).reason == Reason.PREFLIGHT_ERROR
    world.defaults = NEXT
    world.seen.clear()
    world.change(rollout={"maxConcurrent": 3})
    world.reconcile(5)
    world.reconcile(5)
    assert _used(world) == {"gym:2", "inference:2", "trainer:2"}


@pytest.mark.parametrize("end", [0, 78])
def test_an_ended_run_still_says_what_it_was_made_of(end: int) -> None:
    world = _world().to_training()
    world.trainer_ends(end)
    world.settle(5)
    assert world.status.images is not None
    assert world.status.images.trainer == "trainer:1"


def test_the_image_of_a_server_of_several_pods_is_that_of_its_leader() -> None:
    world = _of_an_earlier_release(_world(inference={"nodes": 2}).to_training())
    world.defaults = NEXT
    world.reconcile()
    assert world.status.images is not None
    assert world.status.images.inference == "inference:1"
