"""Which samples a rank forwards in which micro-batch. With numpy, without torch."""

from array import array
from itertools import chain
from random import Random

import pytest

from gymtrain_trainer.framework import TrainingSample
from gymtrain_trainer.trl.planning import MicroBatch, Packed, plan
from gymtrain_trainer.trl.prefixes import PrefixTree
from tests.unit.trainer.trainer_samples import nodes, random_groups, sample_of, unique_tokens_of

type Groups = list[list[TrainingSample]]
BUDGET = 64


def lengths(planned: list[MicroBatch]) -> list[list[list[int]]]:
    """Of the samples, by micro-batch and rank."""
    return [[[len(s.token_ids) for s in packed.samples] for packed in one.by_rank] for one in planned]


def all_packed(planned: list[MicroBatch]) -> list[Packed]:
    return [packed for one in planned for packed in one.by_rank]


def real_samples(planned: list[MicroBatch]) -> list[TrainingSample]:
    """Those that are no fillers."""
    return [sample for packed in all_packed(planned) if not packed.filler for sample in packed.samples]


def of_length(length: int, group_id: int, first: int = 0) -> TrainingSample:
    """A sample that shares nothing with one that has another first token."""
    return sample_of([first] + [group_id] * (length - 1), group_id=group_id)


def apart(*sizes: int, group_id: int | None = None) -> Groups:
    """Samples of these lengths that share nothing, each a group of its own, or all of one."""
    made = [
        of_length(size, number if group_id is None else group_id, 1000 + number) for number, size in enumerate(sizes)
    ]
    return [made] if group_id is not None else [[one] for one in made]


def planned_at_random(seed: int, *, budget: bool) -> tuple[Groups, int, list[MicroBatch]]:
    """A step, the number of ranks, and the plan."""
    random = Random(seed)
    groups, processes = random_groups(random, random.randint(1, 9)), random.randint(1, 7)
    per_device = random.randint(1, 4)
    return groups, processes, plan(groups, processes=processes, per_device=per_device, token_budget=BUDGET * budget)


both_ways = pytest.mark.parametrize("budget", [False, True], ids=["by count", "by budget"])


# --- what all plans have in common ---


@both_ways
def test_every_sample_is_planned_once(budget: bool) -> None:
    for seed in range(150):
        groups, _, planned = planned_at_random(seed, budget=budget)
        assert sorted(map(id, real_samples(planned))) == sorted(map(id, chain(*groups)))


@both_ways
def test_every_rank_has_samples_in_every_micro_batch(budget: bool) -> None:
    for seed in range(150):
        _, processes, planned = planned_at_random(seed, budget=budget)
        for one in planned:
            assert len(one.by_rank) == processes
            assert all(packed.samples for packed in one.by_rank)


@both_ways
def test_tokens_and_load_are_those_of_the_tree(budget: bool) -> None:
    for seed in range(150):
        _, _, planned = planned_at_random(seed, budget=budget)
        for packed in all_packed(planned):
            assert packed.unique_tokens == unique_tokens_of(packed.samples)
            assert packed.load == PrefixTree.of(packed.samples).load
            assert packed.trained_tokens == sum(sample.trained_tokens for sample in packed.samples)


@both_ways
def test_a_rank_gets_a_filler_only_where_no_other_has_a_sample_to_spare(budget: bool) -> None:
    fillers = 0
    for seed in range(300):
        _, _, planned = planned_at_random(seed, budget=budget)
        found = [packed for packed in all_packed(planned) if packed.filler]
        if found:
            assert all(len(packed.samples) == 1 for packed in all_packed(planned))
        fillers += len(found)
    assert fillers, "or the test proves nothing"


@both_ways
def test_the_same_step_gives_the_same_plan(budget: bool) -> None:
    for seed in range(20):
        first, second = (planned_at_random(seed, budget=budget)[2] for _ in range(2))
        assert first == second


@both_ways
def test_no_samples_need_no_micro_batch(budget: bool) -> None:
    assert plan([], processes=2, per_device=2, token_budget=BUDGET * budget) == []
    assert plan([[]], processes=2, per_device=2, token_budget=BUDGET * budget) == []


def test_a_filler_is_the_shortest_sample_with_one_trained_token_that_counts_nothing() -> None:
    longer = sample_of([7, 7, 7, 7, 7], trained=[3, 4])
    shortest = sample_of([5, 6, 7, 8], trained=[2, 3], reward=1.5)
    (one,) = plan([[longer, shortest]], processes=3, per_device=1)
    (filler,) = (packed for packed in one.by_rank if packed.filler)
    (sample,) = filler.samples
    assert sample.token_ids == shortest.token_ids
    assert sample.mask == array("b", [0, 0, 1, 0])
    assert sample.log_probs == shortest.log_probs
    assert (filler.unique_tokens, filler.trained_tokens, filler.load) == (4, 1, 10)
    assert shortest.mask == array("b", [0, 0, 1, 1]), "the sample itself stays as it is"


def test_a_trained_first_token_counts_for_nothing_as_none_predicts_it() -> None:
    (one,) = plan([[sample_of([1, 2, 3], trained=[0, 2])]], processes=2, per_device=1)
    real, filler = one.by_rank
    assert real.trained_tokens == 1
    assert filler.samples[0].mask == array("b", [0, 0, 1])


# --- a number of samples ---


@pytest.mark.parametrize(
    ("samples", "processes", "per_device", "sizes"),
    [
        (8, 2, 2, [4, 4]),
        (9, 2, 2, [3, 3, 3]),
        (10, 2, 2, [4, 3, 3]),
        (3, 2, 2, [3]),
        (7, 4, 1, [7]),  # two micro-batches would leave a rank empty
        (9, 4, 1, [5, 4]),
        (2, 4, 3, [2]),
    ],
)
def test_micro_batches_are_few_and_of_one_size(samples: int, processes: int, per_device: int, sizes: list[int]) -> None:
    planned = plan(apart(*[5] * samples), processes=processes, per_device=per_device)
    assert [len(real_samples([one])) for one in planned] == sizes


def test_micro_batches_take_samples_in_the_order_of_the_groups() -> None:
    for seed in range(50):
        groups, _, planned = planned_at_random(seed, budget=False)
        flat = [id(sample) for sample in chain(*groups)]
        for one in planned:
            size = len(real_samples([one]))
            expected, flat = flat[:size], flat[size:]
            assert sorted(map(id, real_samples([one]))) == sorted(expected)


def test_groups_stay_whole_where_there_are_enough_of_them() -> None:
    groups = [[of_length(5 + group, group) for _ in range(4)] for group in range(4)]
    (one,) = plan(groups, processes=2, per_device=8)
    assert sorted(len({sample.group_id for sample in packed.samples}) for packed in one.by_rank) == [2, 2]


def test_costly_groups_are_placed_first_each_where_the_load_is_least() -> None:
    (one,) = plan(apart(10, 20, 30, 40), processes=2, per_device=2)
    assert lengths([one]) == [[[40], [30, 20, 10]]]


def test_the_largest_group_is_halved_until_each_rank_gets_some() -> None:
    (one,) = plan([*apart(*[9] * 6, group_id=1), *apart(8, group_id=2)], processes=4, per_device=2)
    assert sorted(lengths([one])[0]) == [[8], [9], [9, 9], [9, 9, 9]]


def test_what_a_rank_shares_counts_once_in_its_load() -> None:
    system = list(range(100))
    groups = [*apart(140, 101), *([sample_of([*system, 200 + group, 1], group_id=group)] for group in (2, 3))]
    (one,) = plan(groups, processes=2, per_device=2)
    # Of the two of 102 tokens, the second adds 3: the 101 belong there too.
    assert lengths([one]) == [[[140], [102, 102, 101]]]


# --- a token budget ---


def test_no_packed_sequence_exceeds_the_budget() -> None:
    for seed in range(150):
        _, _, planned = planned_at_random(seed, budget=True)
        for packed in all_packed(planned):
            assert unique_tokens_of(packed.samples) <= BUDGET
            assert packed.trained_tokens <= BUDGET


def test_trained_tokens_have_the_same_budget_though_they_share_places() -> None:
    again = [sample_of(range(10), trained=range(1, 10)) for _ in range(4)]
    planned = plan([again], processes=1, per_device=1, token_budget=20)
    assert lengths(planned) == [[[10, 10]], [[10, 10]]]


def test_shared_tokens_take_of_the_budget_once() -> None:
    prompt = list(range(40))
    group = [sample_of([*prompt, 100 + number, 0]) for number in range(8)]
    planned = plan([group], processes=1, per_device=1, token_budget=39 + 8 * 3)
    assert lengths(planned) == [[[42] * 8]]
    planned = plan([group], processes=1, per_device=1, token_budget=39 + 8 * 3 - 1)
    assert lengths(planned) == [[[42] * 7], [[42]]]


def test_a_system_prompt_that_groups_have_in_common_takes_of_the_budget_once() -> None:
    system = list(range(40))
    groups = [[sample_of([*system, *[100 + group] * 10], group_id=group)] for group in range(2)]
    assert lengths(plan(groups, processes=1, per_device=1, token_budget=64)) == [[[50, 50]]]


def test_a_sample_goes_where_its_group_is() -> None:
    groups = [*apart(9, 9, 9, group_id=1), *apart(20, group_id=2), *apart(8, 8, group_id=3)]
    (one,) = plan(groups, processes=2, per_device=1, token_budget=100)
    assert lengths([one]) == [[[9, 9, 9, 8, 8], [20]]]


def test_a_sample_of_a_full_group_goes_elsewhere_before_a_micro_batch_is_added() -> None:
    groups = [*apart(30, 30, 30, group_id=1), *apart(10, group_id=2)]
    (one,) = plan(groups, processes=2, per_device=1, token_budget=64)
    assert lengths([one]) == [[[30, 30], [30, 10]]]


def test_room_that_an_earlier_micro_batch_has_is_used() -> None:
    planned = plan(apart(40, 50, 20), processes=1, per_device=1, token_budget=64)
    assert lengths(planned) == [[[40, 20]], [[50]]]


def test_a_sample_longer_than_the_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="group 1 has 65 tokens, more than the token budget of 64: raise"):
        plan(apart(3, 65), processes=1, per_device=1, token_budget=64)


def test_ranks_that_the_last_micro_batch_leaves_empty_get_what_its_others_can_spare() -> None:
    groups = [*apart(10, 10, group_id=1), *apart(10, 10, group_id=2)]
    (one,) = plan(groups, processes=3, per_device=1, token_budget=64)
    assert sorted(lengths([one])[0]) == [[10], [10], [10, 10]]


def test_a_rank_gives_half_of_its_samples() -> None:
    (one,) = plan(apart(9, 9, 9, 9, group_id=1), processes=2, per_device=1, token_budget=64)
    assert lengths([one]) == [[[9, 9], [9, 9]]]


def test_the_rank_with_the_largest_load_gives_first() -> None:
    groups = [*apart(10, 10, 10, group_id=1), *apart(25, 25, group_id=2)]
    (one,) = plan(groups, processes=3, per_device=1, token_budget=64)
    assert sorted(lengths([one])[0]) == [[10, 10, 10], [25], [25]]


def test_ranks_that_the_last_micro_batch_leaves_empty_get_what_earlier_ones_can_spare() -> None:
    planned = plan(apart(30, 30, 30, 30, 50), processes=2, per_device=1, token_budget=64)
    assert lengths(planned) == [[[30], [30, 30]], [[50], [30]]]


def test_a_full_step_can_need_a_filler_too() -> None:
    planned = plan(apart(60, 50, 55), processes=2, per_device=1, token_budget=64)
    assert lengths(planned) == [[[60], [50]], [[55], [50]]]
    assert [packed.filler for packed in all_packed(planned)] == [False, False, False, True]


# --- the tree ---


def test_samples_share_a_token_where_they_agree_on_the_next_one() -> None:
    for seed in range(100):
        samples = list(chain(*random_groups(Random(seed), 3)))
        assert PrefixTree.of(samples).unique_tokens == unique_tokens_of(samples)


@pytest.mark.parametrize("common", [0, 1, 255, 256, 257, 1000, 200_000])
def test_prefixes_may_be_of_any_length(common: int) -> None:
    prefix = array("q", range(common))
    samples = [sample_of([*prefix, last, 1]) for last in (5, 3, 4)]
    tree = PrefixTree.of(samples)
    assert tree.order == [1, 2, 0]
    assert tree.shared == [0, max(common - 1, 0), max(common - 1, 0)]


def test_a_load_is_the_number_of_tokens_that_tokens_look_at() -> None:
    for seed in range(50):
        samples = list(chain(*random_groups(Random(seed), 2)))
        found: set[tuple[int, ...]] = set().union(*map(nodes, samples))
        assert PrefixTree.of(samples).load == sum(len(node) - 1 for node in found)
