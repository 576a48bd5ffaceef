"""From the rollouts of one group to TRL's `RolloutSample`s: advantages, turns chained to training rows, masks.

| what | loss |
|---|---|
| tokens that the model sampled | 1 |
| prompts, tool outputs, what the template puts between turns | 0 |
| a truncated rollout with `spec.rollout.maskTruncated` | no gradient; its reward still counts for the group's mean |

TRL 1.16 fails on a batch without one trained token, and with one sample per device that is a single masked row. So a
masked row keeps its first sampled token, with an advantage of 0: nothing of it reaches the gradient.
"""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gymtrain_trainer.errors import AnswerError
from gymtrain_trainer.rollouts.answer import Turn
from gymtrain_trainer.rollouts.buffer import Row
from gymtrain_trainer.rollouts.origins import Origin, Rollout

_EPSILON = 1e-8  # TRL's own


@dataclass(frozen=True)
class GroupScore:
    """Rewards of a group and what GRPO makes of them."""

    rewards: list[float]
    mean: float
    deviation: float  # of the population, as numpy's std
    advantages: list[float]


def score(rewards: Sequence[float]) -> GroupScore:
    """(reward - mean) / (std + 1e-8), as TRL's own worker computes it. Equal rewards give advantages of 0.

    TRL trains on those rows too: they add nothing to the gradient and keep the loss' denominator what it is upstream.
    """
    mean = statistics.fmean(rewards)
    deviation = statistics.pstdev(rewards, mean)
    # pstdev leaves rounding noise (1e-17) on equal rewards, which must not become an advantage
    if max(rewards) == min(rewards):
        return GroupScore(list(rewards), mean, 0.0, [0.0] * len(rewards))
    return GroupScore(list(rewards), mean, deviation, [(r - mean) / (deviation + _EPSILON) for r in rewards])


def conversations(rollout: Rollout) -> Iterator[list[tuple[Turn, Origin | None]]]:
    """The rollout's turns, parted where the gateway says that a turn doesn't continue the one before."""
    part: list[tuple[Turn, Origin | None]] = []
    for turn, origin in itertools.zip_longest(rollout.answer.turns, rollout.origins):
        if part and origin is not None and not origin.continues:
            yield part
            part = []
        part.append((turn, origin))
    yield part


def to_samples(
    rollouts: Sequence[Rollout], *, group_id: int, agent: str, fork_threshold: int, mask_truncated: bool = False
) -> list[Row]:
    """TRL samples of a group, in the order of its rollouts.

    A conversation is one row where each turn's prompt begins with what came before. Where it doesn't, it becomes
    several: every trained token keeps the context that it was sampled in. With a gateway every difference parts them;
    without one, TRL's reconciliation drops the end of an answer where fewer than `fork_threshold` tokens differ.

    Raises:
        AnswerError: a conversation leaves no token to train on.
    """
    import numpy as np
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample, TurnRecord, _chain_to_sequences

    scored = score([rollout.answer.reward for rollout in rollouts])
    rows = []
    for number, rollout in enumerate(rollouts):
        masked = mask_truncated and rollout.truncated
        metrics = {
            "reward": rollout.answer.reward,
            "reward_std": scored.deviation,
            f"rewards/{agent}": rollout.answer.reward,
            "completions/truncated_frac": float(rollout.truncated),
        }
        for part in conversations(rollout):
            turns = [TurnRecord(turn.prompt_ids, turn.output_ids, turn.log_probs) for turn, _ in part]
            constrained = any(origin is not None and origin.constrained for _, origin in part)
            known = {version for _, origin in part if origin for version in origin.versions}
            versions = tuple(sorted(known)) or rollout.versions
            threshold = 0 if rollout.origins else fork_threshold
            sequences, _ = _chain_to_sequences(turns, f"{group_id}/{number}", threshold)
            if not sequences:
                raise AnswerError("no token to train on is left of a conversation")
            for sequence in sequences:
                mask = np.asarray(sequence.completion_mask, dtype=np.int64)
                if masked:
                    first = int(mask.argmax())
                    mask = np.zeros_like(mask)
                    mask[first] = 1
                sample = RolloutSample(
                    prompt=[],
                    completion=[],
                    input_ids=np.asarray(sequence.input_ids, dtype=np.int64),
                    completion_mask=mask,
                    old_log_probs=np.asarray(sequence.old_log_probs, dtype=np.float32),
                    advantage=0.0 if masked else scored.advantages[number],
                    model_version=versions[0],
                    group_id=group_id,
                    metrics=dict(metrics),
                )
                rows.append(Row(sample, versions, constrained))
    return rows
