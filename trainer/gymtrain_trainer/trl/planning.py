"""Which samples of an optimizer step each rank forwards in which micro-batch. Pure; the same step gives the same plan.

All samples are trained on, each once, and every rank has some in every micro-batch: ranks forward together. What a rank
has in a micro-batch becomes one packed sequence, so samples of a group belong together: they share their prompt.

| | without a token budget | with a token budget |
|---|---|---|
| limited | samples of a micro-batch | unique tokens of a packed sequence, and trained ones |
| micro-batches | of one size, in the order of the groups | each sample goes into the first with room for it |
| a sample's rank | groups by cost, each to the least loaded rank | where its group is, else the least loaded |

The first is TRL 1.16's FixedCountBatcher, which this equals where the micro-batches come out even. The second differs
from its TokenBudgetBatcher: that takes samples one by one without an end, drops those that are too long, and never goes
back to an earlier micro-batch.
"""

import bisect
import dataclasses
import itertools
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gymtrain_trainer.framework import TrainingSample
from gymtrain_trainer.trl.prefixes import PrefixTree, added_load, loss_terms


@dataclass(frozen=True)
class Packed:
    """What one rank forwards in a micro-batch, as one packed sequence.

    Attributes:
        samples: at least one.
        unique_tokens: that are forwarded.
        trained_tokens: terms of the loss.
        load: what attention costs, in pairs of tokens.
        filler: the one sample is a copy of another rank's or micro-batch's, there so that the rank takes part. It has
            one trained token; give it an advantage of 0, and leave it out of counts and weights.
    """

    samples: tuple[TrainingSample, ...]
    unique_tokens: int
    trained_tokens: int
    load: int
    filler: bool = False


@dataclass(frozen=True)
class MicroBatch:
    """What all ranks forward together. `by_rank`: one for each process."""

    by_rank: tuple[Packed, ...]


def plan(
    groups: Sequence[Sequence[TrainingSample]], *, processes: int, per_device: int, token_budget: int = 0
) -> list[MicroBatch]:
    """The micro-batches of one optimizer step.

    A rank gets a filler where samples are too few: in a step with fewer of them than processes, or where a token budget
    leaves the last micro-batch with too few and no rank has one to spare. The filler is the step's shortest sample.

    Args:
        groups: the step's samples; each has at least one token with mask 1 behind its first.
        processes: ranks.
        per_device: samples of a rank in a micro-batch, on average; at least 1. Without a token budget only. It is
            exceeded where the last micro-batch would have fewer samples than ranks.
        token_budget: what a packed sequence may have of unique tokens, and of trained ones. 0: no limit.

    Raises:
        ValueError: a sample alone exceeds the token budget.
    """
    step = _Step([sample for group in groups for sample in group])
    if not step.samples:
        return []
    if token_budget > 0:
        planned = _within_budget(step, processes, token_budget)
    else:
        planned = [_balanced(step, part, processes) for part in _even_parts(step, processes, per_device)]
    return [MicroBatch(tuple(_packed(step, share) for share in shares)) for shares in planned]


# --- the samples of a step ---


class _Step:
    """The samples of a step by index, and what any two of them share, without looking at tokens again."""

    def __init__(self, samples: Sequence[TrainingSample]) -> None:
        self.samples = samples
        self.lengths = [len(sample.token_ids) for sample in samples]
        self.trained = [len(loss_terms(sample)) for sample in samples]
        tree = PrefixTree.of(samples)
        self.places = [0] * len(samples)
        for place, index in enumerate(tree.order):
            self.places[index] = place
        # Two samples share the least of what neighbours from one to the other share. `_least[k][p]` is the least of
        # 2**k entries from p on, so that any range takes two look-ups.
        self._least = [tree.shared]
        while (width := 2 ** len(self._least)) <= len(samples):
            least = np.asarray(self._least[-1])
            self._least.append(np.minimum(least[: -width // 2], least[width // 2 :]).tolist())

    def shared(self, one: int, other: int) -> int:
        """Nodes that the samples at two places share; `one` comes first."""
        level = (other - one).bit_length() - 1
        least = self._least[level]
        return min(least[one + 1], least[other + 1 - (1 << level)])

    def least_new(self, index: int) -> int:
        """Tokens that the sample adds to any packed sequence at least."""
        around = self._least[0][self.places[index] : self.places[index] + 2]
        return self.lengths[index] - max(around)

    def filler(self) -> TrainingSample:
        """The shortest sample, as a filler."""
        shortest = min(range(len(self.samples)), key=self.lengths.__getitem__)
        sample = self.samples[shortest]
        mask = array("b", bytes(self.lengths[shortest]))
        mask[int(loss_terms(sample)[0]) + 1] = 1
        return dataclasses.replace(sample, mask=mask)


class _Share:
    """Samples of one rank in a micro-batch, while it is planned."""

    def __init__(self, step: _Step, indices: Iterable[int] = (), micro_batch: int = 0) -> None:
        """`micro_batch`: its number, where there are several."""
        self.micro_batch = micro_batch
        self._step = step
        self._hold(indices)

    def _hold(self, indices: Iterable[int]) -> None:
        self._places: list[int] = []  # sorted
        self.indices: list[int] = []
        self.tokens = self.trained = self.load = 0
        for index in indices:
            self.add(index)

    def fits(self, index: int, budget: int) -> bool:
        """With the sample, neither unique nor trained tokens are more than the budget."""
        if self.trained + self._step.trained[index] > budget:
            return False
        return self.tokens + self._step.lengths[index] - self._shared(index) <= budget

    def add(self, index: int) -> None:
        """Takes a sample."""
        shared, length = self._shared(index), self._step.lengths[index]
        self.tokens += length - shared
        self.trained += self._step.trained[index]
        self.load += added_load(shared, length)
        self.indices.append(index)
        bisect.insort(self._places, self._step.places[index])

    def split(self, at: int) -> "_Share":
        """Keeps its first samples, as many as `at`, and gives the others away."""
        kept, given = self.indices[:at], self.indices[at:]
        self._hold(kept)
        return _Share(self._step, given, self.micro_batch)

    def _shared(self, index: int) -> int:
        """Nodes that the sample shares with those that are here: with one of its neighbours among them."""
        place = self._step.places[index]
        at = bisect.bisect(self._places, place)
        before = self._step.shared(self._places[at - 1], place) if at else 0
        behind = self._step.shared(place, self._places[at]) if at < len(self._places) else 0
        return max(before, behind)


def _packed(step: _Step, share: _Share) -> Packed:
    if share.indices:
        return Packed(tuple(step.samples[i] for i in share.indices), share.tokens, share.trained, share.load)
    filler = step.filler()
    length = len(filler.token_ids)
    return Packed((filler,), length, 1, added_load(0, length), filler=True)


# --- without a token budget ---


def _even_parts(step: _Step, processes: int, per_device: int) -> list[range]:
    """The samples of each micro-batch."""
    total = len(step.samples)
    number = math.ceil(total / (per_device * processes))
    number = max(1, min(number, total // processes))  # each has one for every rank
    size, more = divmod(total, number)
    ends = [size * k + min(k, more) for k in range(number + 1)]
    return [range(begin, end) for begin, end in itertools.pairwise(ends)]


def _balanced(step: _Step, indices: Iterable[int], processes: int) -> list[_Share]:
    """By rank. TRL's rule: groups are placed by cost, the largest first, each where the load is least.

    Until there are as many groups as ranks, the one with the most samples is halved. Ranks without any are left where
    there are fewer samples than ranks.
    """
    by_group: dict[int, list[int]] = {}
    for index in indices:
        by_group.setdefault(step.samples[index].group_id, []).append(index)
    parts = list(by_group.values())
    while len(parts) < processes:
        largest = max(parts, key=len)
        if len(largest) == 1:
            break
        parts.remove(largest)
        half = len(largest) // 2
        parts += [largest[:half], largest[half:]]
    shares = [_Share(step) for _ in range(processes)]
    for part in sorted((_Share(step, part) for part in parts), key=lambda share: share.load, reverse=True):
        least = min(shares, key=lambda share: share.load)
        for index in part.indices:
            least.add(index)
    return shares


# --- with a token budget ---


def _within_budget(step: _Step, processes: int, budget: int) -> list[list[_Share]]:
    """By micro-batch and rank. Ranks of the last one may be left without samples."""
    planned: list[list[_Share]] = []
    room: list[int] = []  # by micro-batch: tokens for which it has room on one of its ranks
    homes: dict[int, list[_Share]] = {}  # where samples of a group are
    for index, sample in enumerate(step.samples):
        if step.lengths[index] > budget:
            raise ValueError(
                f"a sample of group {sample.group_id} has {step.lengths[index]} tokens, more than the token budget of "
                f"{budget}: raise the budget to the context length, or leave the sample out before planning"
            )
        home = homes.setdefault(sample.group_id, [])
        found = _least_loaded(home, index, budget)
        least_new = step.least_new(index)
        for number, free in enumerate(room):
            if found is None and free >= least_new:
                found = _least_loaded(planned[number], index, budget)
        if found is None:
            planned.append([_Share(step, micro_batch=len(planned)) for _ in range(processes)])
            room.append(budget)
            found = planned[-1][0]
        found.add(index)
        room[found.micro_batch] = budget - min(share.tokens for share in planned[found.micro_batch])
        if found not in home:
            home.append(found)
    _fill_last(planned)
    return planned


def _least_loaded(shares: Iterable[_Share], index: int, budget: int) -> _Share | None:
    """The one with the least load of those where the sample fits."""
    by_load = sorted(shares, key=lambda share: share.load)
    return next((share for share in by_load if share.fits(index, budget)), None)


def _fill_last(planned: list[list[_Share]]) -> None:
    """Gives samples to ranks without any, as long as another rank has two. Only the last micro-batch has such ranks.

    They get half of what another one has: of one group, as groups went to ranks without samples first. Where all have
    one sample, one of an earlier micro-batch moves. All fits: each has a part of what fitted.
    """
    last, earlier = planned[-1], [share for shares in planned[:-1] for share in shares]
    for rank, share in enumerate(last):
        if share.indices:
            continue
        if donor := _most_loaded(last):
            last[rank] = donor.split(len(donor.indices) // 2)
        elif donor := _most_loaded(earlier):
            last[rank] = donor.split(len(donor.indices) - 1)


def _most_loaded(shares: Iterable[_Share]) -> _Share | None:
    """The one with the largest load of those that have a sample to spare."""
    return max((share for share in shares if len(share.indices) > 1), key=lambda share: share.load, default=None)
