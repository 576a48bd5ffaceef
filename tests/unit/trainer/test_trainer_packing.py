"""Packed sequences and micro-batches, against TRL's own of the same samples.

They need the trainer image's environment: uv run --extra trainer.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

import numpy as np  # noqa: E402
from trl.experimental.async_grpo.async_grpo_trainer import (  # noqa: E402
    DataCollatorForRollout,
    FixedCountBatcher,
)
from trl.experimental.async_grpo.packing import TreeRow  # noqa: E402

from gymtrain_trainer.framework import TrainingSample  # noqa: E402
from gymtrain_trainer.trl.attention import TreeAttention  # noqa: E402
from gymtrain_trainer.trl.packing import pack, unique_tokens  # noqa: E402
from gymtrain_trainer.trl.planning import plan  # noqa: E402
from gymtrain_trainer.trl.prefixes import PrefixTree  # noqa: E402
from tests.unit.trainer.trainer_samples import random_groups, sample_of  # noqa: E402

pytestmark = pytest.mark.torch

SEEDS = range(150)


def as_trl_has_it(sample: TrainingSample) -> dict[str, Any]:
    """A sample as it leaves TRL's RolloutQueueDataset."""
    return {
        "input_ids": np.asarray(sample.token_ids),
        "completion_mask": np.asarray(sample.mask, dtype=np.int64),
        "old_log_probs": np.asarray(sample.log_probs),
        "advantage": sample.reward,
        "group_id": sample.group_id,
        "metrics": {},
        "ours": sample,
    }


def trl_row(samples: Sequence[TrainingSample]) -> Any:
    row = TreeRow()
    for sample in samples:
        row.add(as_trl_has_it(sample))
    return row


def trl_batch(samples: Sequence[TrainingSample]) -> dict[str, Any]:
    """What TRL's compute_loss gets of these samples where there is one rank."""
    batch: dict[str, Any] = DataCollatorForRollout(pad_token_id=0)([[trl_row(samples)]])
    return batch


def our_batch(samples: Sequence[TrainingSample]) -> dict[str, Any]:
    """The same from us."""
    forwarded = unique_tokens(samples)
    return pack(
        samples,
        [sample.reward for sample in samples],
        global_n_tokens=sum(sample.trained_tokens for sample in samples),
        global_n_forward_tokens=forwarded,
        mean_seq_len=forwarded / len(samples),
    )


def random_samples(seed: int) -> list[TrainingSample]:
    random = Random(seed)
    samples = list(itertools.chain(*random_groups(random, random.randint(1, 4))))
    random.shuffle(samples)
    return samples


def paths(batch: dict[str, Any]) -> list[list[int]]:
    """For each token of the packed sequence, the places of those it looks at, from the root to itself."""
    bounds_q, bounds_k = batch["tree_cu_seqlens_q"][0].tolist(), batch["tree_cu_seqlens_k"][0].tolist()
    found: list[list[int]] = []
    for segment, (begin, end) in enumerate(itertools.pairwise(bounds_q)):
        path = batch["tree_kv_index"][0, bounds_k[segment] : bounds_k[segment + 1]].tolist()
        assert path[len(path) - (end - begin) :] == list(range(begin, end)), "queries are the last of their keys"
        found += [path[: len(path) - (end - place) + 1] for place in range(begin, end)]
    return found


def terms(batch: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Each term of the loss: the tokens that predict, their positions, the predicted one and what it is weighted by."""
    ids, positions = batch["input_ids"][0].tolist(), batch["position_ids"][0].tolist()
    labels, looked_at = batch["shift_labels"][0].tolist(), paths(batch)
    columns = (batch[name][0].tolist() for name in ("token_index", "old_log_probs", "advantages", "segment_id"))
    return [
        (tuple(ids[p] for p in looked_at[at]), tuple(positions[p] for p in looked_at[at]), labels[at], *weights)
        for at, *weights in zip(*columns, strict=True)
    ]


# --- what is packed ---


def test_loss_terms_are_those_of_trl_in_the_same_order() -> None:
    for seed in SEEDS:
        samples = random_samples(seed)
        assert terms(our_batch(samples)) == terms(trl_batch(samples))


def test_tensors_have_the_names_types_and_shapes_that_trl_gives_them() -> None:
    for seed in SEEDS:
        samples = random_samples(seed)
        ours, theirs = our_batch(samples), trl_batch(samples)
        described = [{name: (t.dtype, t.shape) for name, t in batch.items()} for batch in (ours, theirs)]
        assert described[0] == described[1]


def test_counts_are_those_of_trl() -> None:
    for seed in SEEDS:
        samples = random_samples(seed)
        ours, theirs = our_batch(samples), trl_batch(samples)
        for name in (
            "attention_mask",
            "tree_max_seqlens",
            "global_n_tokens",
            "global_n_forward_tokens",
            "mean_seq_len",
        ):
            assert torch.equal(ours[name], theirs[name]), name


def test_no_position_is_trained_that_has_no_loss_term() -> None:
    for seed in SEEDS:
        batch = our_batch(random_samples(seed))
        trained = (batch["shift_labels"][0] != -100).nonzero().flatten().tolist()
        assert trained == sorted(set(batch["token_index"][0].tolist()))


def test_every_sample_is_the_segments_of_one_path() -> None:
    for seed in SEEDS:
        samples = random_samples(seed)
        batch = our_batch(samples)
        ids, looked_at, bounds = batch["input_ids"][0].tolist(), paths(batch), batch["tree_cu_seqlens_q"][0].tolist()
        inner = {path[-2] for path in looked_at if len(path) > 1}
        leaves = [path for place, path in enumerate(looked_at) if place not in inner]
        assert sorted(tuple(ids[place] for place in path) for path in leaves) == sorted(
            {tuple(sample.token_ids) for sample in samples}
        )
        for path in leaves:
            for begin, end in itertools.pairwise(bounds):
                assert len(set(path) & set(range(begin, end))) in (0, end - begin)


def test_samples_without_a_common_token_stand_one_after_another() -> None:
    batch = our_batch([sample_of([5, 6, 7]), sample_of([1, 2])])
    assert batch["input_ids"].tolist() == [[1, 2, 5, 6, 7]]
    assert batch["position_ids"].tolist() == [[0, 1, 0, 1, 2]]
    assert batch["shift_labels"].tolist() == [[2, -100, -100, 7, -100]]
    assert batch["tree_cu_seqlens_q"].tolist() == batch["tree_cu_seqlens_k"].tolist() == [[0, 2, 5]]
    assert batch["token_index"].tolist() == [[3, 0]]


def test_equal_samples_are_forwarded_once_and_trained_each() -> None:
    batch = our_batch([sample_of([1, 2, 3], reward=0.5), sample_of([1, 2, 3], reward=-1.0)])
    assert batch["input_ids"].tolist() == [[1, 2, 3]]
    assert batch["token_index"].tolist() == [[1, 1]]
    assert batch["advantages"].tolist() == [[0.5, -1.0]]


def test_load_and_unique_tokens_are_those_of_trl() -> None:
    for seed in SEEDS:
        samples = random_samples(seed)
        row = trl_row(samples)
        assert (PrefixTree.of(samples).load, unique_tokens(samples)) == (row.load, len(row.tokens))


def test_each_loss_term_has_the_advantage_that_was_given_for_its_sample() -> None:
    samples = [sample_of([1, 2, 3], trained=[1, 2]), sample_of([1, 4])]
    batch = pack(samples, [2.0, -3.0], global_n_tokens=3, global_n_forward_tokens=5, mean_seq_len=2.5)
    assert batch["advantages"].tolist() == [[2.0, 2.0, -3.0]]
    assert [batch[name].tolist() for name in ("global_n_tokens", "global_n_forward_tokens", "mean_seq_len")] == [
        [3.0],
        [5.0],
        [2.5],
    ]


def test_samples_without_a_loss_term_are_refused() -> None:
    with pytest.raises(ValueError, match="none of the rank's 2 samples has a token to train on"):
        our_batch([sample_of([1, 2], trained=[]), sample_of([1, 2], trained=[0])])


def test_each_sample_needs_an_advantage() -> None:
    with pytest.raises(ValueError, match="2 samples have 1 advantages"):
        pack([sample_of([1, 2])] * 2, [1.0], global_n_tokens=1, global_n_forward_tokens=1, mean_seq_len=1.0)


# --- what it is for ---


@pytest.mark.parametrize("dense_limit", [2048, 0], ids=["dense", "by segment"])
def test_our_attention_gives_each_sample_what_it_gets_alone(dense_limit: int) -> None:
    for seed in range(10):
        samples = random_samples(seed)
        batch = our_batch(samples)
        places = {tuple(batch["input_ids"][0, path].tolist()): path for path in paths(batch)}
        packed = attend(batch, dense_limit)
        for sample in samples:
            alone = attend(our_batch([sample]), dense_limit)
            # A fork copies the token before it, with the same hidden state: any path of these tokens is the sample's.
            torch.testing.assert_close(packed[:, places[tuple(sample.token_ids)]], alone, atol=2e-6, rtol=1e-5)


def attend(batch: dict[str, Any], dense_limit: int) -> Any:
    """[1, tokens, heads, width]: attention over hidden states that depend on token and position alone."""
    heads, width = 2, 8
    table = torch.randn(4, heads * width, generator=torch.Generator().manual_seed(0))
    hidden = table[batch["input_ids"][0]] + torch.sin(
        batch["position_ids"][0][:, None] * torch.arange(heads * width)[None]
    )
    states = hidden.reshape(-1, heads, width).transpose(0, 1)[None]
    longest_q, longest_k = batch["tree_max_seqlens"][0].tolist()
    tree = {name: batch[name][0] for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    tree |= {"tree_max_seqlen_q": longest_q, "tree_max_seqlen_k": longest_k}
    out, _ = TreeAttention(dense_limit)(torch.nn.Identity(), states, states, states, None, scaling=0.25, **tree)
    return out


def test_trls_loss_and_gradients_are_those_of_its_own_batch(tiny_model: Path, tmp_path: Path) -> None:
    from tests.unit.trainer.test_trainer_trl import idle_trainer

    trainer = idle_trainer(tiny_model, tmp_path)
    found = []
    for batch in (our_batch(random_samples(7)), trl_batch(random_samples(7))):
        trainer.model.zero_grad()
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in trainer.model.parameters())])
    assert found[0][0].abs() > 0
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


# --- micro-batches ---


def test_micro_batches_that_come_out_even_are_those_of_trl() -> None:
    for seed in range(100):
        random = Random(seed)
        processes, per_device = random.randint(1, 5), random.randint(1, 4)
        groups = random_groups(random, 12)
        samples = list(itertools.chain(*groups))
        size = processes * per_device
        even = samples[: len(samples) - len(samples) % size]
        theirs = FixedCountBatcher([as_trl_has_it(sample) for sample in even], processes, size)
        planned = plan([even], processes=processes, per_device=per_device)
        assert [[packed.samples for packed in one.by_rank] for one in planned] == [
            [tuple(queued["ours"] for queued in row.samples) for row in rows] for rows in theirs
        ]
