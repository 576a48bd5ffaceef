"""Advantages, as TRL's own worker computes them."""

import math

from gymtrain_trainer.rollouts.samples import score


def test_advantages_are_the_rewards_in_deviations_from_their_mean() -> None:
    scored = score([0.0, 1.0, 1.0, 0.0])
    assert scored.mean == 0.5
    assert scored.deviation == 0.5
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(scored.advantages, [-1, 1, 1, -1], strict=True))


def test_equal_rewards_give_no_advantage_at_all() -> None:
    assert score([0.1] * 7).advantages == [0.0] * 7
