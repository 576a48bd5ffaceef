"""Random steps: each sample is trained once, by one rank, and what it counts doesn't depend on how the step is spread
over ranks and micro-batches.

They need the trainer image's environment: uv run --extra trainer.
"""

import queue
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

pytest.importorskip("torch")

from gymtrain_trainer.framework import SampleGroup, TrainingSample
from gymtrain_trainer.rollouts.buffer import GroupBuffer
from gymtrain_trainer.trl.advantages import LOSSES, SCALES, LossSettings, LossType, ScaleRewards, advantages_of
from gymtrain_trainer.trl.batches import RankBatch, StepMaker, make_step
from gymtrain_trainer.trl.settings import Batch
from gymtrain_trainer.trl.trained import TrainedSamples
from tests.unit.trainer.trainer_samples import random_groups, unique_tokens_of

pytestmark = pytest.mark.torch

BUDGET = 64
LENGTH = 16  # max_completion_length
SEEDS = range(80)

type Name = tuple[int, int]


def as_group(random: Random, samples: list[TrainingSample]) -> SampleGroup:
    """The samples as those of rollouts, some of which forked, some masked; and a zero of one whose tokens are lost."""
    rewards: list[float] = []
    made: list[TrainingSample] = []
    masked = False
    for sample in samples:
        if not made or random.random() < 0.6:
            rewards.append(random.choice([0.0, 0.25, 1.0]))
            masked = random.random() < 0.2
        made.append(replace(sample, rollout=len(rewards) - 1, reward=rewards[-1], masked=masked, truncated=masked))
    zeros = [0.0] * random.choice([0, 0, 1])
    return SampleGroup(samples[0].group_id, "adder", (*rewards, *zeros), tuple(made))


@dataclass(frozen=True)
class Step:
    """A step of these groups, by rank."""

    groups: list[SampleGroup]
    batch: Batch
    settings: LossSettings
    ranks: list[list[RankBatch]]

    @classmethod
    def of(cls, seed: int, loss: LossType = "bnpo", scale: ScaleRewards = "group") -> "Step":
        """At random."""
        random = Random(seed)
        groups = [as_group(random, samples) for samples in random_groups(random, random.randint(1, 6))]
        batch = Batch(
            per_device=random.randint(1, 4),
            accumulation=1,
            processes=random.randint(1, 4),
            num_generations=8,
            token_budget=random.choice([0, BUDGET]),
        )
        settings = LossSettings(scale, loss, LENGTH)
        return cls(groups, batch, settings, make_step(groups, batch, settings, TrainedSamples())[0])

    @property
    def micro_batches(self) -> list[tuple[RankBatch, ...]]:
        """What all ranks forward together."""
        return list(zip(*self.ranks, strict=True))

    @property
    def samples(self) -> dict[Name, TrainingSample]:
        """Of the groups, by group and place."""
        return {(group.id, place): sample for group in self.groups for place, sample in enumerate(group.samples)}

    def planned(self) -> Iterator[tuple[Name | None, TrainingSample, float, RankBatch]]:
        """All samples of all ranks, each with its name, its advantage, and where it is."""
        for part in (part for rank in self.ranks for part in rank):
            assert part.names is not None
            for name, sample, advantage in zip(part.names, part.samples, part.advantages, strict=True):
                yield name, sample, advantage, part

    def weights(self) -> dict[Name, float]:
        """By what TRL multiplies the loss of each of a sample's tokens, in the sum over ranks and micro-batches."""
        return {
            name: advantage / (part.global_n_tokens * len(self.ranks[0]))
            for name, _, advantage, part in self.planned()
            if name is not None
        }

    def advantages(self) -> dict[Name, float]:
        """Of the rollout of each sample that isn't masked."""
        found = dict(
            zip(
                (group.id for group in self.groups),
                advantages_of(self.groups, self.settings.scale_rewards),
                strict=True,
            )
        )
        return {name: found[name[0]][one.rollout] for name, one in self.samples.items() if not one.masked}

    def tokens(self) -> Counter[tuple[int, int]]:
        """Trained tokens of each rollout that isn't masked."""
        counts: Counter[tuple[int, int]] = Counter()
        for sample in self.samples.values():
            if not sample.masked:
                counts[sample.group_id, sample.rollout] += sum(sample.mask)
        return counts

    def share(self, name: Name) -> float:
        """By what the loss of each of a sample's tokens is multiplied, but for its advantage; written out."""
        tokens, sample = self.tokens(), self.samples[name]
        match self.settings.loss_type:
            case "dapo":
                return 1 / tokens.total()
            case "grpo":
                return 1 / (tokens[sample.group_id, sample.rollout] * len(tokens))
            case "dr_grpo":
                return 1 / (LENGTH * len(tokens))
        raise AssertionError("it depends on the micro-batch")


def test_all_ranks_have_as_many_micro_batches_with_samples_in_each() -> None:
    for seed in SEEDS:
        step = Step.of(seed)
        assert len(step.ranks) == step.batch.processes
        assert len({len(rank) for rank in step.ranks}) == 1
        assert all(part.samples for rank in step.ranks for part in rank)


def test_every_sample_is_in_one_micro_batch_of_one_rank() -> None:
    for seed in SEEDS:
        step = Step.of(seed)
        names = Counter(name for name, *_ in step.planned() if name is not None)
        assert names == {name: 1 for name, sample in step.samples.items() if not sample.masked}
        assert all(sample is step.samples[name] for name, sample, *_ in step.planned() if name is not None)


def test_masked_samples_are_there_too_and_with_fillers_they_add_nothing() -> None:
    fillers = 0
    for seed in SEEDS:
        step = Step.of(seed)
        nameless = [(sample, advantage) for name, sample, advantage, _ in step.planned() if name is None]
        assert all((sum(sample.mask), advantage) == (1, 0.0) for sample, advantage in nameless)
        masked = Counter(tuple(sample.token_ids) for sample in step.samples.values() if sample.masked)
        there = Counter(tuple(sample.token_ids) for sample, _ in nameless)
        assert masked <= there
        fillers += (there - masked).total()
        assert not there - masked or all(len(part.samples) == 1 for rank in step.ranks for part in rank)
    assert fillers, "or the test proves nothing"


def test_ranks_agree_on_the_tokens_of_a_micro_batch_and_these_add_up_to_the_steps() -> None:
    for seed in SEEDS:
        step = Step.of(seed)
        total = 0
        for parts in step.micro_batches:
            named = [step.samples[name] for part in parts for name in part.names or () if name is not None]
            trained = sum(sum(sample.mask) for sample in named)
            forwarded = sum(unique_tokens_of(part.samples) for part in parts)
            samples = sum(len(part.samples) for part in parts)
            assert {(part.global_n_tokens, part.global_n_forward_tokens) for part in parts} == {
                (max(1, trained), forwarded)
            }
            assert {part.mean_seq_len for part in parts} == {forwarded / samples}
            total += trained
        assert total == step.tokens().total()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "bnpo"])
def test_what_a_token_counts_does_not_depend_on_how_the_step_is_spread(loss: LossType, scale: ScaleRewards) -> None:
    for seed in SEEDS:
        step = Step.of(seed, loss, scale)
        wanted = {name: advantage * step.share(name) for name, advantage in step.advantages().items()}
        assert step.weights() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("scale", SCALES)
def test_with_trls_own_division_a_token_counts_by_its_micro_batch_alone(scale: ScaleRewards) -> None:
    for seed in SEEDS:
        step = Step.of(seed, "bnpo", scale)
        found = {name: advantage for name, _, advantage, _ in step.planned() if name is not None}
        assert found == step.advantages()


def test_no_rank_forwards_more_tokens_than_the_budget() -> None:
    for step in (step for step in map(Step.of, SEEDS) if step.batch.token_budget):
        assert all(unique_tokens_of(part.samples) <= BUDGET for rank in step.ranks for part in rank)


# --- where steps begin and end ---


class Rollouts:
    """A worker whose groups wait already."""

    def __init__(self, groups: list[SampleGroup]) -> None:
        self.buffer = GroupBuffer(lambda: 1)
        self.metrics: queue.Queue[dict[str, Any]] = queue.Queue()
        for group in groups:
            self.buffer.put(group)

    def start(self) -> None:
        """Nothing runs."""

    def stop(self) -> None:
        """Nothing runs."""

    def update_model_version(self, model_version: int) -> None:
        """Nothing is sampled."""

    def check_health(self) -> None:
        """There are groups."""


@pytest.mark.parametrize("budget", [0, BUDGET], ids=["by count", "by budget"])
def test_steps_are_the_groups_of_the_queue_in_order_and_each_ends_with_the_one_that_fills_it(budget: int) -> None:
    sizes = set()
    for seed in range(20):
        random = Random(seed)
        groups = [as_group(random, samples) for samples in random_groups(random, 60)]
        batch = Batch(2, random.randint(1, 2), random.randint(1, 3), random.choice([2, 4]), budget)
        rollouts = Rollouts(groups)
        maker = StepMaker(rollouts, batch, LossSettings())
        steps = []
        for _ in range(3):
            maker.step(1)
            steps.append([one.group for one in rollouts.buffer.use()])
        assert [group for step in steps for group in step] == groups[: maker.groups]
        for step in steps:
            sizes.add(len(step))
            if budget:
                tokens = [sum(unique_tokens_of(group.samples) for group in step[:last]) for last in (-1, len(step))]
                assert tokens[0] < budget * batch.processes * batch.accumulation <= tokens[1]
            else:
                assert len(step) == batch.groups_per_step
    assert len(sizes) > 1
