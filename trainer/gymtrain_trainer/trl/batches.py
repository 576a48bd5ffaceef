"""The steps of a run, as TRL's loop takes them: whole groups from the queue, packed into micro-batches, one row a rank.

```
GroupQueue ──► groups of a step ──► advantages ──► plan: micro-batches, rows ──► pack ──► every rank its rows
rank 0 alone                                                                              StepLoader
```
In place of TRL's own way (RolloutQueueDataset, its batchers, and accelerate's dispatcher), which counts samples and not
groups, and fetches a micro-batch of the next step before the weights of this one are synced.
"""

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gymtrain_trainer.errors import InterruptedBySignal
from gymtrain_trainer.framework import Rollouts, SampleGroup, TrainingSample
from gymtrain_trainer.trl.advantages import LossSettings, StepTokens, advantages_of, factor
from gymtrain_trainer.trl.packing import load, pack, unique_tokens
from gymtrain_trainer.trl.planning import MicroBatch, plan
from gymtrain_trainer.trl.settings import Batch

_POLL_SECONDS = 5.0  # between two looks at the worker's health

type Rows = list[dict[str, torch.Tensor]]  # of one rank: one a micro-batch


class StepMaker:
    """Makes the steps on rank 0."""

    def __init__(self, rollouts: Rollouts, batch: Batch, settings: LossSettings) -> None:
        """`batch`: of the run; `settings`: of its loss."""
        self._rollouts = rollouts
        self._batch = batch
        self._settings = settings
        self.wait_s = 0.0  # waiting for groups, since the reader set it to 0: TRL's log has it
        self.groups = 0  # made into steps so far

    def step(self, version: int) -> list[Rows]:
        """The next step, by rank.

        Args:
            version: the model version of the weights that will train on it.

        Raises:
            TrainerError: no groups will come.
        """
        groups = self._take()
        self.groups += len(groups)
        rows, measured = make_step(groups, self._batch, self._settings)
        ages = [version - sample.version for group in groups for sample in group.samples]
        measured |= {"sample/staleness_mean": sum(ages) / len(ages), "sample/staleness_max": float(max(ages))}
        self._rollouts.metrics.put(measured)
        return rows

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


def make_step(groups: Sequence[SampleGroup], batch: Batch, settings: LossSettings) -> tuple[list[Rows], dict[str, Any]]:
    """The rows of a step by rank, and what TRL's log shows of them. Pure."""
    tokens, advantages = StepTokens.of(groups), advantages_of(groups, settings.scale_rewards)
    by_rollout = {
        (group.id, rollout): advantage
        for group, of_group in zip(groups, advantages, strict=True)
        for rollout, advantage in enumerate(of_group)
    }
    micro_batches = plan(
        [group.samples for group in groups],
        processes=batch.processes,
        per_device=batch.per_device,
        token_budget=batch.token_budget,
    )
    ranks: list[Rows] = [[] for _ in range(batch.processes)]
    forwarded = 0
    for micro_batch in micro_batches:
        trained = sum(_counted(sample, micro_batch) for row in micro_batch.rows for sample in row)

        def advantage(sample: TrainingSample, part: MicroBatch = micro_batch, of: int = trained) -> float:
            if not _counted(sample, part):
                return 0.0
            scaled = factor(sample, settings, tokens, of, len(micro_batches))
            return by_rollout[sample.group_id, sample.rollout] * scaled

        packed = [
            pack([_trainable(sample) for sample in row], advantages=[advantage(sample) for sample in row])
            for row in micro_batch.rows
        ]
        lengths = [row["input_ids"].numel() for row in packed]
        samples = sum(len(row) for row in micro_batch.rows)
        forwarded += sum(lengths)
        for rank, row in enumerate(packed):
            ranks[rank].append(
                row
                | {
                    "global_n_tokens": torch.tensor([float(max(1, trained))]),
                    "global_n_forward_tokens": torch.tensor([float(sum(lengths))]),
                    "mean_seq_len": torch.tensor([sum(lengths) / samples]),
                }
            )
    return ranks, _measured(groups, micro_batches, forwarded)


def _counted(sample: TrainingSample, micro_batch: MicroBatch) -> int:
    """Trained tokens of a sample; 0 of one that must not reach the gradient."""
    return 0 if sample.masked or micro_batch.is_filler(sample) else sample.trained_tokens


def _trainable(sample: TrainingSample) -> TrainingSample:
    """TRL 1.16 fails on a row without a trained token: a masked sample keeps its first one, with an advantage of 0."""
    if not sample.masked:
        return sample
    first = list(sample.mask).index(1)
    return replace(sample, mask=[int(place == first) for place in range(len(sample.mask))])


def _measured(groups: Sequence[SampleGroup], micro_batches: Sequence[MicroBatch], forwarded: int) -> dict[str, Any]:
    """Under TRL's own names where it has one. Rewards are means over rollouts, however many samples each became."""
    samples = [sample for group in groups for sample in group.samples]
    rewards: dict[str, list[float]] = {}
    for group in groups:
        rewards.setdefault(group.agent, []).extend(group.rewards)
    every = [reward for of_agent in rewards.values() for reward in of_agent]
    truncated = {(sample.group_id, sample.rollout) for sample in samples if sample.truncated}
    lengths = [len(sample.token_ids) for sample in samples]
    trained = sum(sample.trained_tokens for sample in samples)
    loads = [[load(row) for row in micro_batch.rows] for micro_batch in micro_batches]
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
        "batch/row_imbalance": max(max(row) * len(row) / max(1, sum(row)) for row in loads),
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
    """

    make: Callable[[], list[Rows]] | None
    steps: Callable[[], int]
    processes: int

    def __iter__(self) -> Iterator[dict[str, Rows]]:
        """Ends where SIGTERM came while rank 0 waited for rollouts: all ranks end there together, with a checkpoint.

        An error on rank 0 would leave the others in the collective. It is one, however, where there is no other rank,
        or where this process has trained no step: a checkpoint would hold nothing new.
        """
        began_at = self.steps()
        while (mine := self._next(began_at)) is not None:
            yield {"micro_batches": mine}

    def _next(self, began_at: int) -> Rows | None:
        made: list[Rows] | None = None
        if self.make is not None:
            try:
                made = self.make()
            except InterruptedBySignal:
                if self.processes == 1 or self.steps() == began_at:
                    raise
        if self.processes == 1:
            return made[0] if made else None
        got: list[Any] = [None]
        out: list[Rows | None] | None = None
        if self.make is not None:
            out = [*made] if made is not None else [None] * self.processes
        torch.distributed.scatter_object_list(got, out, src=0)
        rows: Rows | None = got[0]
        return rows
