"""Numbers of versions."""

from gymtrain_trainer.weights.numbers import SyncNumbers


def test_no_number_is_given_out_twice_whatever_became_of_the_sync() -> None:
    numbers = SyncNumbers()
    given = [numbers.next() for _ in range(3)]
    assert given == [1, 2, 3]
    assert numbers.current == 0


def test_a_process_goes_on_after_the_numbers_of_the_one_before() -> None:
    assert SyncNumbers(16).next() == 17
