"""The steps of a run, as TRL's loop takes them: whole groups from the queue, in micro-batches.

```
GroupQueue ──► groups of a step ──► advantages, plan: micro-batches, by rank ──► each rank packs its own
               rank 0 (StepMaker)                                                all ranks (StepLoader)
```
In place of TRL's own way (RolloutQueueDataset, its batchers, and accelerate's dispatcher), which counts samples and not
groups, and fetches a micro-batch of the next step before the weights of this one are synced.
"""

import queue
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gymtrain_trainer.errors import InterruptedBySignal
from gymtrain_trainer.framework import Rollouts, SampleGroup, TrainingSample
from gymtrain_trainer.trl.advantages import LossSettings, StepTokens, advantages_of, factor
from gymtrain_trainer.trl.packing import pack, unique_tokens
from gymtrain_trainer.trl.planning import MicroBatch, plan
from gymtrain_trainer.trl.settings import Batch
from gymtrain_trainer.trl.trained import NAMES, Name, TrainedSamples

_POLL_SECONDS = 5.0  # between two looks at the worker's health


@dataclass(frozen=True)
class RankBatch:
    """What one rank forwards in a micro-batch, before it packs it. Numbers without `global_` are the rank's own."""

    samples: tuple[TrainingSample, ...]
    advantages: tuple[float, ...]
    global_n_tokens: int
    global_n_forward_tokens: int
    mean_seq_len: float
    names: tuple[Name | None, ...] | None = None  # of the samples, where they are recorded

    def packed(self) -> dict[str, Any]:
        """As TRL's loss takes it."""
        packed = pack(
            self.samples,
            self.advantages,
            global_n_tokens=self.global_n_tokens,
            global_n_forward_tokens=self.global_n_forward_tokens,
            mean_seq_len=self.mean_seq_len,
        )
        return packed if self.names is None else packed | {NAMES: self.names}


class StepMaker:
    """Makes the steps on rank 0."""

    def __init__(
        self, rollouts: Rollouts, batch: Batch, settings: LossSettings, trained: TrainedSamples | None = None
    ) -> None:
        """`batch`: of the run; `settings`: of its loss; `trained`: where samples are recorded."""
        self._rollouts = rollouts
        self._batch = batch
        self._settings = settings
        self._trained = trained
        self.wait_s = 0.0  # waiting for groups, since the reader set it to 0: TRL's log has it
        self.groups = 0  # made into steps so far

    def step(self, version: int) -> list[list[RankBatch]]:
        """The next step, by rank.

        Args:
            version: the model version of the weights that will train on it.

        Raises:
            TrainerError: no groups will come.
        """
        groups = self._take()
        self.groups += len(groups)
        ranks, measured = make_step(groups, self._batch, self._settings, self._trained)
        ages = [version - sample.version for group in groups for sample in group.samples]
        measured |= {"sample/staleness_mean": sum(ages) / len(ages), "sample/staleness_max": float(max(ages))}
        self._rollouts.metrics.put(measured)
        return ranks

    def _take(self) -> list[SampleGroup]:
        groups: list[SampleGroup] = []
        tokens = 0
        while not self._enough(len(groups), tokens):
            began = time.monotonic()
            try:
                groups.append(self._rollouts.buffer.get(_POLL_SECONDS))
            except queue.Empty:
                self._rollouts.check_health()
                continue
            finally:
                self.wait_s += time.monotonic() - began
            if self._batch.token_budget:
                tokens += unique_tokens(groups[-1].samples)
        return groups

    def _enough(self, groups: int, tokens: int) -> bool:
        """Whether a step is whole. With a token budget it ends with the group that fills its micro-batches."""
        if self._batch.token_budget:
            return tokens >= self._batch.token_budget * self._batch.processes * self._batch.accumulation
        return groups >= self._batch.groups_per_step


def make_step(
    groups: Sequence[SampleGroup], batch: Batch, settings: LossSettings, record: TrainedSamples | None = None
) -> tuple[list[list[RankBatch]], dict[str, Any]]:
    """The micro-batches of a step by rank, and what TRL's log shows of them. Pure, but that `record` is told."""
    tokens, advantages = StepTokens.of(groups), advantages_of(groups, settings.scale_rewards)
    by_rollout = {
        (group.id, rollout): advantage
        for group, of_group in zip(groups, advantages, strict=True)
        for rollout, advantage in enumerate(of_group)
    }
    names = record.plan(groups, advantages) if record is not None else None
    micro_batches = plan(
        [[_trainable(sample) for sample in group.samples] for group in groups],
        processes=batch.processes,
        per_device=batch.per_device,
        token_budget=batch.token_budget,
    )
    ranks: list[list[RankBatch]] = [[] for _ in range(batch.processes)]
    for micro_batch in micro_batches:
        counted = [part for part in micro_batch.by_rank if not part.filler]
        trained = sum(s.trained_tokens for part in counted for s in part.samples if not s.masked)
        forwarded = sum(part.unique_tokens for part in micro_batch.by_rank)
        samples = sum(len(part.samples) for part in micro_batch.by_rank)
        for rank, part in enumerate(micro_batch.by_rank):
            ranks[rank].append(
                RankBatch(
                    samples=part.samples,
                    advantages=tuple(
                        0.0
                        if part.filler or sample.masked
                        else by_rollout[sample.group_id, sample.rollout]
                        * factor(sample, settings, tokens, trained, len(micro_batches))
                        for sample in part.samples
                    ),
                    global_n_tokens=max(1, trained),
                    global_n_forward_tokens=forwarded,
                    mean_seq_len=forwarded / samples,
                    names=tuple(names.get(id(sample)) for sample in part.samples) if names is not None else None,
                )
            )
    return ranks, _measured(groups, micro_batches)


def _trainable(sample: TrainingSample) -> TrainingSample:
    """TRL 1.16 fails on a rank without a trained token: a masked sample keeps its first one, with an advantage of 0."""
    if not sample.masked:
        return sample
    mask = array("b", bytes(len(sample.mask)))
    mask[bytes(sample.mask).index(1)] = 1
    return replace(sample, mask=mask)


def _measured(groups: Sequence[SampleGroup], micro_batches: Sequence[MicroBatch]) -> dict[str, Any]:
    """Under TRL's own names where it has one. Rewards are means over rollouts, however many samples each became."""
    samples = [sample for group in groups for sample in group.samples]
    rewards: dict[str, list[float]] = {}
    for group in groups:
        rewards.setdefault(group.agent, []).extend(group.rewards)
    every = [reward for of_agent in rewards.values() for reward in of_agent]
    truncated = {(sample.group_id, sample.rollout) for sample in samples if sample.truncated}
    lengths = [len(sample.token_ids) for sample in samples]
    trained = sum(sample.trained_tokens for sample in samples)
    forwarded = sum(part.unique_tokens for micro_batch in micro_batches for part in micro_batch.by_rank)
    loads = [[part.load for part in micro_batch.by_rank] for micro_batch in micro_batches]
    return {
        "reward": sum(every) / len(every),
        "reward_std": sum(group.reward_deviation for group in groups) / len(groups),
        **{f"rewards/{agent}": sum(values) / len(values) for agent, values in rewards.items()},
        "completions/truncated_frac": len(truncated) / len(every),
        "sample/forwarded_tokens_mean": sum(lengths) / len(lengths),
        "sample/forwarded_tokens_max": float(max(lengths)),
        "sample/trained_tokens_mean": trained / len(samples),
        "batch/masked_token_frac": (sum(lengths) - trained, sum(lengths)),
        "batch/packing_ratio": (sum(lengths), forwarded),
        "batch/row_imbalance": max(max(of_ranks) * len(of_ranks) / sum(of_ranks) for of_ranks in loads),
        "batch/rollouts_per_step": float(len(every)),
        "batch/equal_rewards_frac": sum(not group.reward_deviation for group in groups) / len(groups),
    }


@dataclass(frozen=True)
class StepLoader:
    """What TRL's loop iterates over, on every rank: an item holds the rank's micro-batches of one step.

    It fetches nothing ahead: what a step trains on is drawn from the queue when the step before has ended.

    Attributes:
        make: the next step by rank; None on ranks other than 0.
        steps: that are done.
        processes: ranks.
        total: steps of the run; None where that isn't known.
        before_first: called when the first step is about to be trained.
    """

    make: Callable[[], list[list[RankBatch]]] | None
    steps: Callable[[], int]
    processes: int
    total: int | None = None
    before_first: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Ends where SIGTERM came while rank 0 waited for rollouts: all ranks end there together, with a checkpoint.

        An error on rank 0 would leave the others in the collective. It is one, however, where there is no other rank,
        or where this process has trained no step: a checkpoint would hold nothing new.
        """
        began_at = self.steps()
        if self.total is not None and began_at >= self.total:
            return  # a run that goes on at its end: TRL's loop asks for a step, and no rollouts come for one
        while (mine := self._next(began_at)) is not None:
            if self.steps() == began_at:
                self.before_first()
            yield {"micro_batches": [micro_batch.packed() for micro_batch in mine]}

    def _next(self, began_at: int) -> list[RankBatch] | None:
        made: list[list[RankBatch]] | None = None
        if self.make is not None:
            try:
                made = self.make()
            except InterruptedBySignal:
                if self.processes == 1 or self.steps() == began_at:
                    raise
        if self.processes == 1:
            return made[0] if made else None
        got: list[list[RankBatch] | None] = [None]
        out: list[list[RankBatch] | None] | None = None
        if self.make is not None:
            out = [*made] if made is not None else [None] * self.processes
        torch.distributed.scatter_object_list(got, out, src=0)
        return got[0]
