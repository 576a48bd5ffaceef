"""Which row comes at which position: a pure function, so that one integer resumes a run.

Datasets are interleaved by weight (smooth weighted round-robin), each is shuffled again each time it has been gone
through. The shuffle is a permutation computed per row (a Feistel network with cycle walking, as in format-preserving
encryption), so a dataset of any size needs no memory.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

_ROUNDS = 4


def permuted(index: int, size: int, key: str) -> int:
    """Place of `index` in the permutation of range(size) that `key` names."""
    if size < 2:
        return 0
    half = ((size - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:  # the network permutes a power of four; walk on until the value is inside (at most 4 tries on average)
        left, right = index >> half, index & mask
        for number in range(_ROUNDS):
            digest = hashlib.blake2b(f"{key}/{number}/{right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest) & mask)
        index = (left << half) | right
        if index < size:
            return index


def weighted_cycle(weights: Sequence[int]) -> list[int]:
    """Dataset numbers of one cycle: each as often as its weight, spread out evenly."""
    credit = [0] * len(weights)
    total = sum(weights)
    cycle = []
    for _ in range(total):
        credit = [have + weight for have, weight in zip(credit, weights, strict=True)]
        chosen = credit.index(max(credit))
        credit[chosen] -= total
        cycle.append(chosen)
    return cycle


@dataclass(frozen=True)
class Draw:
    """One row to use: its dataset, its row number, and how often the dataset was gone through before."""

    dataset: int
    row: int
    epoch: int


@dataclass(frozen=True)
class Place:
    """Where in the draw order a run is: what a checkpoint keeps."""

    first_open: int = 0
    done: tuple[int, ...] = ()  # after it


class DrawOrder:
    """The endless sequence of draws."""

    def __init__(self, rows: Sequence[int], weights: Sequence[int], seed: int) -> None:
        """`rows` and `weights` by dataset; every dataset has rows and a weight of at least 1."""
        assert len(rows) == len(weights)
        assert all(rows)
        assert all(weights)
        self._rows = list(rows)
        self._weights = list(weights)
        self._seed = seed
        self._cycle = weighted_cycle(weights)
        self._rank = []  # how often the slot's dataset came earlier in the cycle
        seen = [0] * len(weights)
        for dataset in self._cycle:
            self._rank.append(seen[dataset])
            seen[dataset] += 1

    def at(self, position: int) -> Draw:
        """The draw at a position, from 0."""
        cycle, slot = divmod(position, len(self._cycle))
        dataset = self._cycle[slot]
        drawn = cycle * self._weights[dataset] + self._rank[slot]
        epoch, index = divmod(drawn, self._rows[dataset])
        row = permuted(index, self._rows[dataset], f"{self._seed}/{dataset}/{epoch}")
        return Draw(dataset, row, epoch)


def in_proportion(rows: Sequence[int], most: int | None) -> list[int]:
    """How many of the first rows of each dataset to take, `most` in all: in proportion to their sizes, by largest
    remainders; of equal ones the earlier dataset's."""
    total = sum(rows)
    if most is None or most >= total:
        return list(rows)
    shares = [divmod(most * count, total) for count in rows]
    taken = [whole for whole, _ in shares]
    left = sorted(range(len(rows)), key=lambda number: (-shares[number][1], number))
    for number in left[: most - sum(taken)]:
        taken[number] += 1
    return taken
