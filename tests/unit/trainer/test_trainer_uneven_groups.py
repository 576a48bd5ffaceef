"""Steps of groups that lost rollouts."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from gymtrain_trainer.framework import SampleGroup
from gymtrain_trainer.trl.advantages import LossSettings, advantages_of
from gymtrain_trainer.trl.batches import make_step
from gymtrain_trainer.trl.settings import Batch
from tests.unit.trainer.trainer_data import group

pytestmark = pytest.mark.torch


def uneven() -> list[SampleGroup]:
    """A whole group of 4, one that lost two rollouts, and one with a 0 of a rollout whose tokens are lost."""
    zeroed = group(2, rewards=[1.0, 0.5, 1.0])
    return [
        group(0, rewards=[1.0, 0.0, 0.0, 1.0]),
        group(1, rewards=[0.25, 0.75]),
        replace(zeroed, rewards=(*zeroed.rewards, 0.0)),
    ]


@pytest.mark.parametrize("processes", [1, 2])
def test_every_rollout_with_tokens_is_trained_once_with_the_advantage_of_its_reward(processes: int) -> None:
    batch = Batch(per_device=2, accumulation=3, processes=processes, num_generations=4, token_budget=0)
    ranks, measured = make_step(uneven(), batch, LossSettings())
    trained = {
        (sample.group_id, sample.rollout): advantage
        for rank in ranks
        for part in rank
        for sample, advantage in zip(part.samples, part.advantages, strict=True)
        if advantage
    }
    wanted = {
        (made.id, rollout): advantage
        for made, of_group in zip(uneven(), advantages_of(uneven(), "group"), strict=True)
        for rollout, advantage in enumerate(of_group)
        if advantage and rollout < len(made.samples)
    }
    assert trained == pytest.approx(wanted)
    assert measured["reward"] == pytest.approx((2 + 1 + 2.5) / 10)
    assert measured["batch/rollouts_per_step"] == 10
