"""Rewards to advantages, and what each sample counts in the loss. Pure; settings under GRPOConfig's own names.

`scale_rewards`, by what a reward's distance from the mean of its group is divided:

| value | divided by |
|---|---|
| group (default) | the standard deviation of the group: GRPO (arXiv 2402.03300) |
| batch | the standard deviation of all rewards of the step: REINFORCE++ (arXiv 2501.03262) |
| none | nothing: Dr. GRPO (arXiv 2503.20783) |

`loss_type`, by what the sum of the tokens' losses is divided:

| value | divided by | a rollout counts |
|---|---|---|
| bnpo (default) | trained tokens of the micro-batch, then mean of these: AsyncGRPOTrainer's own | by its tokens |
| dapo | trained tokens of the step (arXiv 2503.14476) | by its tokens |
| grpo | trained tokens of the rollout, then mean over rollouts (arXiv 2402.03300) | as every other |
| dr_grpo | rollouts of the step times max_completion_length, a constant (arXiv 2503.20783) | by its tokens |

A rollout whose turns forked into several samples has the same tokens as one that didn't, in more rows: none of these
counts it more for that. TRL divides by the tokens of the micro-batch, so the others multiply the advantage, by which
each token's loss is multiplied, with a positive number: clipping, which asks for the sign, sees no difference.

Left out: RLOO's baseline, the mean of the others in the group, is GRPO's times n / (n - 1): with groups of one size
that is a learning rate.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

from gymtrain_trainer.framework import SampleGroup, TrainingSample

type ScaleRewards = Literal["group", "batch", "none"]
type LossType = Literal["bnpo", "dapo", "grpo", "dr_grpo"]
SCALES: tuple[ScaleRewards, ...] = get_args(ScaleRewards.__value__)
LOSSES: tuple[LossType, ...] = get_args(LossType.__value__)

_EPSILON = 1e-8  # as TRL has it


@dataclass(frozen=True)
class LossSettings:
    """Settings of `spec.trainer.config` that shape the loss beside TRL's own."""

    scale_rewards: ScaleRewards = "group"
    loss_type: LossType = "bnpo"
    max_completion_length: int = 2048


def advantages_of(groups: Sequence[SampleGroup], scale: ScaleRewards) -> list[list[float]]:
    """The advantage of each rollout, by group: exactly 0 in a group of equal rewards.

    Those are trained on too: they add nothing to the gradient, and keep the loss' denominator as upstream.
    """
    batch = statistics.pstdev([reward for group in groups for reward in group.rewards])
    return [_of_group(group, scale, batch) for group in groups]


def _of_group(group: SampleGroup, scale: ScaleRewards, batch_deviation: float) -> list[float]:
    mean, deviation = statistics.fmean(group.rewards), group.reward_deviation
    if not deviation:  # the mean's rounding noise must not become an advantage
        return [0.0] * len(group.rewards)
    match scale:
        case "group":
            divisor = deviation + _EPSILON
        case "batch":
            divisor = batch_deviation + _EPSILON
        case "none":
            divisor = 1.0
        case _:
            assert_never(scale)
    return [(reward - mean) / divisor for reward in group.rewards]


@dataclass(frozen=True)
class StepTokens:
    """What the step's losses are divided by; masked samples count nowhere.

    Attributes:
        total: trained tokens.
        by_rollout: of each rollout, by group and its number there.
    """

    total: int
    by_rollout: Mapping[tuple[int, int], int]

    @classmethod
    def of(cls, groups: Sequence[SampleGroup]) -> "StepTokens":
        """Counts them."""
        counts: dict[tuple[int, int], int] = defaultdict(int)
        for group in groups:
            for sample in group.samples:
                if not sample.masked:
                    counts[sample.group_id, sample.rollout] += sample.trained_tokens
        return cls(sum(counts.values()), counts)


def factor(
    sample: TrainingSample, settings: LossSettings, tokens: StepTokens, micro_batch_tokens: int, micro_batches: int
) -> float:
    """By what the advantage of a sample is multiplied, where TRL divides by the tokens and number of micro-batches.

    Args:
        sample: one that isn't masked.
        settings: of the run.
        tokens: of the step.
        micro_batch_tokens: trained tokens of the sample's micro-batch, over all ranks.
        micro_batches: of the step.
    """
    undo = micro_batch_tokens * micro_batches
    match settings.loss_type:
        case "bnpo":
            return 1.0
        case "dapo":
            return undo / max(1, tokens.total)
        case "grpo":
            return undo / (max(1, tokens.by_rollout[sample.group_id, sample.rollout]) * len(tokens.by_rollout))
        case "dr_grpo":
            return undo / (settings.max_completion_length * len(tokens.by_rollout))
        case _:
            assert_never(settings.loss_type)
