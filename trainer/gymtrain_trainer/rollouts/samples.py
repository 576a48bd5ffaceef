"""From the answers of one group to TRL's `RolloutSample`s: advantages, and turns chained to training rows."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymtrain_trainer.errors import AnswerError
from gymtrain_trainer.rollouts.answer import Answer

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


def to_samples(
    answers: Sequence[Answer], *, group_id: int, model_version: int, agent: str, fork_threshold: int
) -> list[Any]:
    """TRL samples of a group, in the order of its rollouts.

    A conversation is one row where each turn's prompt begins with what came before; TRL's own reconciliation forks
    it into several where re-tokenizing gave other ids. Every trained token keeps the context that it was sampled in.

    Raises:
        AnswerError: a conversation leaves no token to train on.
    """
    import numpy as np
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample, TurnRecord, _chain_to_sequences

    scored = score([answer.reward for answer in answers])
    samples = []
    for number, answer in enumerate(answers):
        turns = [
            TurnRecord(prompt_ids=turn.prompt_ids, output_ids=turn.output_ids, output_log_probs=turn.log_probs)
            for turn in answer.turns
            if turn.output_ids
        ]
        sequences, _ = _chain_to_sequences(turns, f"{group_id}/{number}", fork_threshold)
        if not sequences:
            raise AnswerError("no token to train on is left of a conversation")
        metrics = {
            "reward": answer.reward,
            "reward_std": scored.deviation,
            f"rewards/{agent}": answer.reward,
            "completions/truncated_frac": float(answer.truncated),
        }
        samples += [
            RolloutSample(
                prompt=[],
                completion=[],
                input_ids=np.asarray(sequence.input_ids, dtype=np.int64),
                completion_mask=np.asarray(sequence.completion_mask, dtype=np.int64),
                old_log_probs=np.asarray(sequence.old_log_probs, dtype=np.float32),
                advantage=scored.advantages[number],
                model_version=model_version,
                group_id=group_id,
                metrics=dict(metrics),
            )
            for sequence in sequences
        ]
    return samples
