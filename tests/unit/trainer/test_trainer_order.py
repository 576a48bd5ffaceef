"""The draw order: deterministic, fair by weight, every row once an epoch."""

from collections import Counter

from gymtrain_trainer.data.order import DrawOrder, permuted, weighted_cycle


def test_a_permutation_hits_every_row_once() -> None:
    for size in (1, 2, 3, 7, 64, 1000):
        assert sorted(permuted(i, size, "key") for i in range(size)) == list(range(size))


def test_permutations_of_two_keys_differ() -> None:
    first, second = ([permuted(i, 100, key) for i in range(100)] for key in ("a", "b"))
    assert first != second
    assert first != list(range(100))


def test_datasets_are_drawn_by_weight_and_interleaved() -> None:
    cycle = weighted_cycle([3, 1])
    assert Counter(cycle) == {0: 3, 1: 1}
    assert cycle != [0, 0, 0, 1]


def test_every_row_comes_once_before_any_comes_twice() -> None:
    order = DrawOrder(rows=[5, 3], weights=[2, 1], seed=0)
    draws = [order.at(position) for position in range(15)]
    first_epoch = [draw.row for draw in draws if draw.dataset == 0 and draw.epoch == 0]
    assert sorted(first_epoch) == [0, 1, 2, 3, 4]


def test_an_epoch_is_shuffled_differently_from_the_one_before() -> None:
    order = DrawOrder(rows=[50], weights=[1], seed=0)
    assert [order.at(i).row for i in range(50)] != [order.at(i + 50).row for i in range(50)]


def test_a_position_alone_tells_the_draw() -> None:
    assert [DrawOrder([9, 4], [1, 3], seed=7).at(p) for p in range(40)] == [
        DrawOrder([9, 4], [1, 3], seed=7).at(p) for p in range(40)
    ]


def test_another_seed_draws_in_another_order() -> None:
    one, other = DrawOrder([50], [1], seed=1), DrawOrder([50], [1], seed=2)
    assert [one.at(p) for p in range(50)] != [other.at(p) for p in range(50)]
