"""From samples to one packed sequence: what TRL's loss takes, for one rank and one micro-batch.

TRL 1.16 has this for all ranks on rank 0, with a Python object for each token. Here each rank packs its own samples,
on numpy columns: what takes Python's time is the number of samples and forks, not of tokens.

Tokens that samples share (see `prefixes`) stand once in the packed sequence. It is laid out depth first: the first
sample as a whole, then what each further one adds. A run of nodes without a fork is a segment, and each sample is the
segments along one path of the tree:

```
samples      packed sequence       segments                path of each segment
a b c d      a b c d b c e         a | b c d | b c e       a | a b c d | a b c e
a b c e
```

The attention gets, for each segment, its tokens as queries and those of its path as keys; queries are the last tokens
of their path. Both TRL's kernel and `attention.TreeAttention` are built on that.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gymtrain_trainer.framework import TrainingSample
from gymtrain_trainer.trl.prefixes import Integers, PrefixTree, loss_terms

_UNTRAINED = -100  # the label that torch's cross entropy leaves out


def unique_tokens(samples: Sequence[TrainingSample]) -> int:
    """Tokens of the packed sequence of these samples."""
    return PrefixTree.of(samples).unique_tokens


def pack(
    samples: Sequence[TrainingSample],
    advantages: Sequence[float],
    *,
    global_n_tokens: float,
    global_n_forward_tokens: float,
    mean_seq_len: float,
) -> dict[str, torch.Tensor]:
    """The `inputs` of TRL's `AsyncGRPOTrainer.compute_loss`, without padding.

    Args:
        samples: of one rank in one micro-batch.
        advantages: of the samples, one each.
        global_n_tokens: loss terms of the micro-batch on all ranks; they divide the loss.
        global_n_forward_tokens: tokens of all packed sequences of the micro-batch.
        mean_seq_len: those tokens, divided by the samples of the micro-batch.

    Returns:
        N tokens, S segments, K tokens on all their paths, M loss terms:

        | name | shape | type | what |
        |---|---|---|---|
        | input_ids | [1, N] | int64 | the tokens |
        | attention_mask | [1, N] | int64 | ones: nothing is padded |
        | position_ids | [1, N] | int64 | of a token in its samples |
        | shift_labels | [1, N] | int64 | the next token where a sample trains it, else -100 |
        | tree_kv_index | [1, K] | int64 | places of the tokens on each segment's path, one path after another |
        | tree_cu_seqlens_q | [1, S + 1] | int32 | where segments begin and end in the packed sequence |
        | tree_cu_seqlens_k | [1, S + 1] | int32 | where their paths do in tree_kv_index |
        | tree_max_seqlens | [1, 2] | int64 | tokens of the longest segment, of the longest path |
        | token_index | [1, M] | int64 | place of the token that predicts; sample by sample |
        | old_log_probs | [1, M] | float32 | of the predicted token, when it was sampled |
        | advantages | [1, M] | float32 | of its sample |
        | segment_id | [1, M] | int64 | index of its sample (TRL's name; not a segment of the tree) |
        | global_n_tokens, global_n_forward_tokens, mean_seq_len | [1] | float32 | as given |

    Raises:
        ValueError: no loss term (TRL's loss fails on that), or another number of advantages than of samples.
    """
    if len(advantages) != len(samples):
        raise ValueError(f"{len(samples)} samples have {len(advantages)} advantages: each needs one")
    terms = [loss_terms(sample) for sample in samples]
    counts = [len(found) for found in terms]
    if not sum(counts):
        raise ValueError(
            f"none of the rank's {len(samples)} samples has a token to train on after its first one, and TRL's loss "
            "fails without: give the rank a sample that has (planning.plan does)"
        )
    tree = PrefixTree.of(samples)
    layout = _Layout(tree)
    places: dict[int, Integers] = {}  # of the loss terms, by sample
    for index, path in layout.lay_out():
        places[index] = path[terms[index]]
        layout.shift_labels[places[index]] = tree.token_ids[index][terms[index] + 1]
    columns = layout.columns() | {
        "token_index": np.concatenate([places[index] for index in range(len(samples))]),
        "old_log_probs": np.concatenate(
            [
                np.asarray(sample.log_probs, dtype=np.float32)[found + 1]
                for sample, found in zip(samples, terms, strict=True)
            ]
        ),
        "advantages": np.repeat(np.asarray(advantages, dtype=np.float32), counts),
        "segment_id": np.repeat(np.arange(len(samples)), counts),
    }
    batch = {name: torch.from_numpy(column).unsqueeze(0) for name, column in columns.items()}
    scalars = {
        "global_n_tokens": global_n_tokens,
        "global_n_forward_tokens": global_n_forward_tokens,
        "mean_seq_len": mean_seq_len,
    }
    return batch | {name: torch.tensor([float(value)]) for name, value in scalars.items()}


class _Layout:
    """The columns that say where each token stands and what it looks at."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._ends = segment_ends(tree)
        tokens = tree.unique_tokens
        self.input_ids: Integers = np.empty(tokens, dtype=np.int64)
        self.position_ids: Integers = np.empty(tokens, dtype=np.int64)
        self.shift_labels: Integers = np.full(tokens, _UNTRAINED, dtype=np.int64)
        self.kv_index: Integers = np.empty(sum(map(sum, self._ends)), dtype=np.int64)
        self.cu_seqlens_q, self.cu_seqlens_k = [0], [0]

    def lay_out(self) -> Iterator[tuple[int, Integers]]:
        """Fills the columns, but for the labels; gives each sample's index and the places of its tokens.

        The places are valid until the next sample: one array serves for all, as a sample's path begins with what it
        shares with the one before.
        """
        tree = self._tree
        path: Integers = np.empty(max(tree.lengths), dtype=np.int64)
        for index, shared, ends in zip(tree.order, tree.shared, self._ends, strict=True):
            ids = tree.token_ids[index]
            begin = self.cu_seqlens_q[-1]
            new = slice(begin, begin + len(ids) - shared)
            path[shared : len(ids)] = np.arange(new.start, new.stop)
            self.input_ids[new] = ids[shared:]
            self.position_ids[new] = np.arange(shared, len(ids))
            for end in ends:
                begin_k = self.cu_seqlens_k[-1]
                self.kv_index[begin_k : begin_k + end] = path[:end]
                self.cu_seqlens_k.append(begin_k + end)
                self.cu_seqlens_q.append(begin + end - shared)
            yield index, path[: len(ids)]

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The columns, by TRL's names."""
        longest = [int(np.diff(np.asarray(bounds)).max()) for bounds in (self.cu_seqlens_q, self.cu_seqlens_k)]
        return {
            "input_ids": self.input_ids,
            "attention_mask": np.ones_like(self.input_ids),
            "position_ids": self.position_ids,
            "shift_labels": self.shift_labels,
            "tree_kv_index": self.kv_index,
            "tree_cu_seqlens_q": np.asarray(self.cu_seqlens_q, dtype=np.int32),
            "tree_cu_seqlens_k": np.asarray(self.cu_seqlens_k, dtype=np.int32),
            "tree_max_seqlens": np.asarray(longest, dtype=np.int64),
        }


def segment_ends(tree: PrefixTree) -> list[list[int]]:
    """By place: depths at which the segments end that the sample adds, in order; the last is its own end.

    Where a later sample leaves the path at some depth, the segment with the nodes around the fork ends there. A sample
    that equals the one before adds none.
    """
    ends: list[set[int]] = []
    on_path: list[int] = []  # places whose nodes are on the path of the sample at hand, from the root
    for place, (shared, length) in enumerate(zip(tree.shared, tree.lengths, strict=True)):
        while on_path and tree.shared[on_path[-1]] >= shared:
            on_path.pop()
        if on_path:
            ends[on_path[-1]].add(shared)
        on_path.append(place)
        ends.append({length} if shared < length else set())
    return [sorted(found) for found in ends]
