"""From the rollouts of one group to training samples: turns chained to sequences, with the mask of what was sampled.
Pure.

| tokens | mask |
|---|---|
| that the model sampled | 1 |
| prompts, tool outputs, what the template puts between turns | 0 |
"""

import itertools
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gymtrain_trainer.errors import AnswerError
from gymtrain_trainer.framework import SampleGroup, TrainingSample
from gymtrain_trainer.rollouts.answer import Turn
from gymtrain_trainer.rollouts.origins import Origin, Rollout

_SLICE = 4096  # tokens


def conversations(rollout: Rollout) -> Iterator[list[tuple[Turn, Origin | None]]]:
    """The rollout's turns, parted where the gateway says that a turn doesn't continue the one before."""
    part: list[tuple[Turn, Origin | None]] = []
    for turn, origin in itertools.zip_longest(rollout.answer.turns, rollout.origins):
        if part and origin is not None and not origin.continues:
            yield part
            part = []
        part.append((turn, origin))
    yield part


@dataclass
class Chain:
    """One sequence while turns are chained to it; columns as in `TrainingSample`."""

    token_ids: array[int] = field(default_factory=lambda: array("I"))
    mask: array[int] = field(default_factory=lambda: array("b"))
    log_probs: array[float] = field(default_factory=lambda: array("f"))
    answer: int | None = None  # where the last answer begins

    def takes(self, turn: Turn, fork_threshold: int) -> bool:
        """Adds a turn; False if its history is another one than what is here.

        Where it differs within the last answer alone, and in fewer tokens than `fork_threshold`, the history of the
        turn is taken in place of those tokens, which are not trained.
        """
        same = _common_tokens(self.token_ids, turn.prompt_ids)
        drift = len(self.token_ids) - same
        if drift and (self.answer is None or same < self.answer or drift >= fork_threshold):
            return False
        context = turn.prompt_ids[same:]
        self.token_ids[same:] = context
        self.mask[same:] = array("b", bytes(len(context)))
        self.log_probs[same:] = array("f", bytes(4 * len(context)))
        self.answer = len(self.token_ids)
        self.token_ids.extend(turn.output_ids)
        self.mask.frombytes(b"\x01" * len(turn.output_ids))
        self.log_probs.extend(turn.log_probs)
        return True


def chains(turns: Sequence[Turn], fork_threshold: int) -> list[Chain]:
    """The turns of a conversation, in order, as sequences with a token to train on; a turn that isn't taken begins one.

    The rule is that of TRL 1.16's own worker.
    """
    found: list[Chain] = []
    for turn in turns:
        if not found or not found[-1].takes(turn, fork_threshold):
            found.append(Chain())
            found[-1].takes(turn, fork_threshold)
    return [chain for chain in found if any(chain.mask)]


def _common_tokens(one: array[int], other: array[int]) -> int:
    """How many tokens both begin with. By slices: histories have 100,000 tokens, and are compared at each turn."""
    limit = min(len(one), len(other))
    for start in range(0, limit, _SLICE):
        end = min(start + _SLICE, limit)
        if one[start:end] != other[start:end]:
            return next(place for place in range(start, end) if one[place] != other[place])
    return limit


def to_samples(
    rollouts: Sequence[Rollout], *, group_id: int, agent: str, fork_threshold: int, mask_truncated: bool = False
) -> SampleGroup:
    """The samples of a group, in the order of its rollouts.

    A conversation is one sample where each turn's prompt begins with what came before. Where it doesn't, it becomes
    several: every trained token keeps the context that it was sampled in. With a gateway every difference parts them;
    without one, the end of an answer is dropped where fewer than `fork_threshold` tokens differ.

    Raises:
        AnswerError: a conversation leaves no token to train on.
    """
    samples = []
    for number, rollout in enumerate(rollouts):
        for part in conversations(rollout):
            known = {version for _, origin in part if origin for version in origin.versions}
            found = chains([turn for turn, _ in part], 0 if rollout.origins else fork_threshold)
            if not found:
                raise AnswerError("no token to train on is left of a conversation")
            for chain in found:
                samples.append(
                    TrainingSample(
                        token_ids=array("q", chain.token_ids),
                        mask=chain.mask,
                        log_probs=chain.log_probs,
                        versions=tuple(sorted(known)) or rollout.versions,
                        group_id=group_id,
                        rollout=number,
                        agent=agent,
                        reward=rollout.answer.reward,
                        truncated=rollout.truncated,
                        masked=mask_truncated and rollout.truncated,
                        constrained=any(origin is not None and origin.constrained for _, origin in part),
                    )
                )
    rewards = tuple(rollout.answer.reward for rollout in rollouts)
    return SampleGroup(id=group_id, agent=agent, rewards=rewards, samples=tuple(samples))
