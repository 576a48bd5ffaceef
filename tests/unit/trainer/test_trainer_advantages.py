"""What a reward becomes, and what each sample counts in the loss."""

from dataclasses import replace
from typing import get_args

import pytest

from gymtrain_trainer.framework import SampleGroup
from gymtrain_trainer.trl.advantages import LossSettings, LossType, StepTokens, advantages_of, factor
from tests.unit.trainer.trainer_data import group


def test_by_default_advantages_are_rewards_in_deviations_of_their_group_from_its_mean() -> None:
    [made] = advantages_of([group(0, rewards=[0.0, 1.0, 1.0, 0.0])], "group")
    assert made == pytest.approx([-1, 1, 1, -1])


def test_equal_rewards_give_no_advantage_at_all() -> None:
    groups = [group(0, rewards=[0.1] * 7), group(1, rewards=[0.0, 1.0])]
    for scale in ("group", "batch", "none"):
        assert advantages_of(groups, scale)[0] == [0.0] * 7


def test_scaled_by_batch_a_group_of_small_differences_has_small_advantages() -> None:
    even, wide = advantages_of([group(0, rewards=[0.4, 0.6]), group(1, rewards=[0.0, 1.0])], "batch")
    assert even == pytest.approx([value / 5 for value in wide])


def test_unscaled_advantages_are_distances_from_the_mean() -> None:
    assert advantages_of([group(0, rewards=[0.0, 0.5, 1.0])], "none") == [[-0.5, 0.0, 0.5]]


def forked() -> list[SampleGroup]:
    """Two rollouts: one of a sample with 2 trained tokens, one that forked into three such samples."""
    plain = group(0, rewards=[1.0, 0.0])
    forks = tuple(replace(plain.samples[1], token_ids=[1, 2, 5, 60 + number]) for number in range(3))
    return [replace(plain, samples=(plain.samples[0], *forks))]


def counted(loss_type: LossType, groups: list[SampleGroup], micro_batches: list[list[int]]) -> dict[int, float]:
    """What each rollout counts in the loss: TRL's division of its tokens, times the factor, over all micro-batches."""
    samples = [sample for of_group in groups for sample in of_group.samples]
    settings, tokens = LossSettings(loss_type=loss_type, max_completion_length=4), StepTokens.of(groups)
    counts: dict[int, float] = {}
    for numbers in micro_batches:
        trained = sum(samples[number].trained_tokens for number in numbers if not samples[number].masked)
        for number in numbers:
            if not samples[number].masked:
                scaled = factor(samples[number], settings, tokens, trained, len(micro_batches))
                share = samples[number].trained_tokens * scaled / (trained * len(micro_batches))
                counts[samples[number].rollout] = counts.get(samples[number].rollout, 0.0) + share
    return counts


@pytest.mark.parametrize("micro_batches", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0], [1, 2, 3]]])
def test_by_sequence_a_rollout_counts_as_every_other_however_many_samples_it_became(
    micro_batches: list[list[int]],
) -> None:
    assert counted("grpo", forked(), micro_batches) == pytest.approx({0: 0.5, 1: 0.5})


@pytest.mark.parametrize("micro_batches", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0], [1, 2, 3]]])
def test_by_the_steps_tokens_each_token_counts_as_every_other(micro_batches: list[list[int]]) -> None:
    assert counted("dapo", forked(), micro_batches) == pytest.approx({0: 0.25, 1: 0.75})


@pytest.mark.parametrize("micro_batches", [[[0, 1, 2, 3]], [[0], [1, 2, 3]]])
def test_by_a_constant_tokens_count_the_same_in_every_step(micro_batches: list[list[int]]) -> None:
    assert counted("dr_grpo", forked(), micro_batches) == pytest.approx({0: 2 / 8, 1: 6 / 8})


def test_trls_own_division_is_left_as_it_is() -> None:
    assert counted("bnpo", forked(), [[0], [1, 2, 3]]) == pytest.approx({0: 0.5, 1: 0.5})


def with_a_zero() -> list[SampleGroup]:
    """Three rollouts, of which the last failed: it counts with reward 0, and its tokens are lost."""
    plain = group(0, rewards=[1.0, 0.5])
    return [replace(plain, rewards=(*plain.rewards, 0.0))]


def test_a_rollout_without_tokens_counts_in_mean_and_deviation() -> None:
    assert advantages_of(with_a_zero(), "none") == [[0.5, 0.0, -0.5]]
    assert advantages_of(with_a_zero(), "group")[0] == pytest.approx([1.5**0.5, 0.0, -(1.5**0.5)])


def test_a_rollout_without_tokens_makes_the_others_count_no_less() -> None:
    assert counted("grpo", with_a_zero(), [[0, 1]]) == pytest.approx({0: 0.5, 1: 0.5})


@pytest.mark.parametrize("loss_type", get_args(LossType.__value__))
def test_a_masked_rollout_is_in_no_denominator(loss_type: LossType) -> None:
    [whole] = forked()
    masked = [replace(whole, samples=(*whole.samples[:1], *(replace(s, masked=True) for s in whole.samples[1:])))]
    alone = counted(loss_type, masked, [[0, 1, 2, 3]])[0]
    assert alone == pytest.approx({"bnpo": 1.0, "dapo": 1.0, "grpo": 1.0, "dr_grpo": 0.5}[loss_type])
