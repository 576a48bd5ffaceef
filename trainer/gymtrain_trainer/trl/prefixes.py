"""Which leading tokens samples have in common: their prefix tree, without a node for each token.

The tree is TRL's (trl/experimental/async_grpo/packing.py). A node stands for a token *and the one after it*, and for
all tokens before: two samples share a node where they agree up to the token after it, so that every node predicts one
token. The last token of a sample is followed by none, so each sample ends on a leaf.

```
a b c d        a─b┬c─d       sorted: a b c d     4 new nodes
a b c e           └b─c─e             a b c e     shares a, adds b c e: what b is followed by is the same, what c is
                                                 followed by isn't
```

Sorted by their tokens, samples that share the most stand side by side. All of the tree is then in two columns: the
order, and how many nodes each sample shares with the one before it.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from gymtrain_trainer.framework import TrainingSample

type Integers = npt.NDArray[np.int64]

_FIRST_SLICE = 256  # tokens: most samples differ early
_LARGEST_SLICE = 65_536  # bounds the memory of a comparison


@dataclass(frozen=True)
class PrefixTree:
    """The tree of some samples. A sample's place is where it stands in the sorted order.

    Attributes:
        token_ids: of the samples as they were given: one int64 array each, on the sample's own memory.
        order: the samples' indices, by place.
        shared: by place: nodes that the sample shares with the one before it; 0 for the first.
    """

    token_ids: list[Integers]
    order: list[int]
    shared: list[int]

    @classmethod
    def of(cls, samples: Sequence[TrainingSample]) -> "PrefixTree":
        """The tree. Takes n log n comparisons of samples, all of them in C."""
        token_ids = [np.asarray(sample.token_ids, dtype=np.int64) for sample in samples]
        # Arrays of the standard library compare as lists do, and neither copy nor make an object for each number.
        order = sorted(range(len(samples)), key=lambda index: cast("array[int]", samples[index].token_ids))
        shared = [0] * len(order)
        for place in range(1, len(order)):
            shared[place] = shared_nodes(token_ids[order[place - 1]], token_ids[order[place]])
        return cls(token_ids, order, shared)

    @property
    def lengths(self) -> list[int]:
        """Tokens of the samples, by place."""
        return [len(self.token_ids[index]) for index in self.order]

    @property
    def unique_tokens(self) -> int:
        """Nodes of the tree: the tokens that are forwarded."""
        return sum(self.lengths) - sum(self.shared)

    @property
    def load(self) -> int:
        """What attention costs: for each node, the nodes that it looks at, itself included."""
        return sum(added_load(shared, length) for shared, length in zip(self.shared, self.lengths, strict=True))


def loss_terms(sample: TrainingSample) -> Integers:
    """Positions of the sample's tokens whose prediction is in the loss: those right before a token with mask 1.

    Nothing predicts the first token, so its mask doesn't count.
    """
    return np.flatnonzero(np.asarray(sample.mask, dtype=np.int8)[1:])


def added_load(shared: int, length: int) -> int:
    """What a sample of `length` tokens adds to the load of a tree with which it shares `shared` nodes."""
    return (length * (length + 1) - shared * (shared + 1)) // 2


def shared_nodes(one: Integers, other: Integers) -> int:
    """Nodes that two samples share: all of them if they are equal, else one less than their common tokens."""
    common = _common_tokens(one, other)
    if common == len(one) == len(other):
        return common
    return max(common - 1, 0)


def _common_tokens(one: Integers, other: Integers) -> int:
    limit = min(len(one), len(other))
    start, width = 0, _FIRST_SLICE
    while start < limit:
        end = min(start + width, limit)
        differs = one[start:end] != other[start:end]
        first = int(differs.argmax())
        if differs[first]:
            return start + first
        start, width = end, min(2 * width, _LARGEST_SLICE)
    return limit
