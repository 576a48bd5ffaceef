"""What becomes of free pods, decided without a broker that runs."""

from typing import Any

from gymtrain_api.sandboxes import AnnouncedTask
from gymtrain_broker.policy.image_pulls import ImagePulls
from gymtrain_broker.policy.plan import MakePodAhead
from gymtrain_broker.policy.shapes import PodShapes
from gymtrain_broker.policy.state import State
from gymtrain_broker.policy.warm_pool import WarmPool, WarmPoolPlan
from tests.unit.broker.conftest import settings


class _Pool:
    """A warm pool whose plans are begun, so that their pods are being made."""

    def __init__(self, **spec: Any) -> None:
        config = settings(**spec)
        self.state = State()
        pulls = ImagePulls(config.spec.pre_pull.max_per_registry)
        self._pool = WarmPool(config, self.state, PodShapes(config), pulls)

    def plan(self) -> WarmPoolPlan:
        """The next plan."""
        return self._pool.plan(1000.0, pressed=False)

    def images_begun(self) -> list[str]:
        """Begins what the next plan says."""
        steps = [MakePodAhead(want, f"pod-{len(self.state.making) + n}") for n, want in enumerate(self.plan().missing)]
        self.state.making |= {step.name: step.want for step in steps}
        return [step.want.shape.image for step in steps]


def test_a_pod_that_is_being_made_is_not_made_again() -> None:
    pool = _Pool(warmPools=[{"image": "a:1", "replicas": 2}])
    assert pool.images_begun() == ["a:1", "a:1"]
    assert pool.images_begun() == []


def test_images_of_pods_that_are_being_made_count_as_pulls_of_their_registry() -> None:
    pool = _Pool(lookAhead={"tasks": 9}, prePull={"maxPerRegistry": 2})
    images = ["a:1", "b:1", "c:1", "ghcr.io/d:1"]
    pool.state.announced = [AnnouncedTask(image=image, task=image) for image in images]
    assert pool.images_begun() == ["a:1", "b:1", "ghcr.io/d:1"]
    assert pool.images_begun() == []


def test_only_so_many_are_made_at_once() -> None:
    pool = _Pool(warmPools=[{"image": "a:1", "replicas": 50}])
    assert len(pool.images_begun()) == 32
    assert pool.images_begun() == []
    pool.state.making.clear()
    assert len(pool.images_begun()) == 32, "none of them came"
