"""Training samples for tests of what puts them into micro-batches: made up, with prefixes in common as in real ones."""

from array import array
from collections.abc import Sequence
from random import Random

from gymtrain_trainer.framework import TrainingSample


def sample_of(
    token_ids: Sequence[int], *, trained: Sequence[int] | None = None, group_id: int = 0, reward: float = 0.5
) -> TrainingSample:
    """A sample. `trained`: places of the tokens in the loss; without it the last one."""
    places = [len(token_ids) - 1] if trained is None else trained
    mask = array("b", bytes(len(token_ids)))
    log_probs = array("f", bytes(4 * len(token_ids)))
    for place in places:
        mask[place] = 1
        log_probs[place] = -0.125 * (1 + place % 7) - reward
    return TrainingSample(
        token_ids=array("q", token_ids),
        mask=mask,
        log_probs=log_probs,
        versions=(1,),
        group_id=group_id,
        rollout=0,
        agent="adder",
        reward=reward,
    )


def random_groups(random: Random, groups: int, most: int = 8) -> list[list[TrainingSample]]:
    """Groups of up to `most` samples behind one system prompt: with forks, repetitions, and samples that go on where
    another one ends. Few different tokens, so that much is shared by chance too."""
    system = _tokens(random, random.randint(0, 12))
    return [_group(random, system, group_id, random.randint(1, most)) for group_id in range(groups)]


def _group(random: Random, system: list[int], group_id: int, size: int) -> list[TrainingSample]:
    prompt = system + _tokens(random, random.randint(1, 12))
    known = [prompt]
    made = []
    for _ in range(size):
        base = random.choice(known)
        kept = random.choice([len(base), len(base), random.randint(1, len(base))])
        ids = base[:kept] + _tokens(random, random.choice([0, 1, 5, 12]))
        if len(ids) < 2:
            ids = prompt + _tokens(random, 2)
        known.append(ids)
        trained = sorted(random.sample(range(1, len(ids)), random.randint(1, len(ids) - 1)))
        made.append(sample_of(ids, trained=trained, group_id=group_id, reward=random.uniform(-2.0, 2.0)))
    return made


def _tokens(random: Random, number: int) -> list[int]:
    return [random.randint(0, 2) for _ in range(number)]


def nodes(sample: TrainingSample) -> set[tuple[int, ...]]:
    """The sample's nodes in the tree, spelled out: each is its tokens up to the one after it, where there is one."""
    ids = tuple(sample.token_ids)
    return {ids[: place + 2] + (() if place + 1 < len(ids) else (-1,)) for place in range(len(ids))}


def unique_tokens_of(samples: Sequence[TrainingSample]) -> int:
    """By counting nodes."""
    return len(set().union(*map(nodes, samples)))
