"""The account of draws: every position ends done, once."""

import random
from collections import Counter

from gymtrain_trainer.data.order import Place
from gymtrain_trainer.rollouts.positions import Positions


def test_positions_come_in_order_and_those_again_first() -> None:
    positions = Positions(Place(10))
    assert [positions.draw() for _ in range(3)] == [10, 11, 12]
    positions.again(11)
    assert [positions.draw() for _ in range(2)] == [11, 13]


def test_the_place_is_the_first_open_position_and_what_is_done_after_it() -> None:
    positions = Positions(Place())
    for _ in range(5):
        positions.draw()
    positions.done([1, 4])
    assert positions.place() == Place(0, (1, 4))
    positions.done([0])
    assert positions.place() == Place(2, (4,))
    positions.done([3, 2])
    assert positions.place() == Place(5)


def test_a_run_that_resumes_draws_what_was_open_and_nothing_else() -> None:
    positions = Positions(Place(2, (3, 5)))
    assert positions.upcoming(4) == [2, 4, 6, 7]
    assert [positions.draw() for _ in range(4)] == [2, 4, 6, 7]


def test_over_many_attempts_each_position_is_done_exactly_once() -> None:
    """What a checkpoint holds is done; what an attempt did after its last one is lost with it, and drawn again."""
    chance = random.Random(7)
    kept, place = Counter[int](), Place()
    for _attempt in range(60):
        positions, saved, since = Positions(place), place, list[int]()
        running: list[int] = []
        for _move in range(chance.randrange(60)):
            match chance.choice(["draw", "draw", "end", "fail", "save"]):
                case "draw":
                    running.append(positions.draw())
                case "end" if running:
                    done = [running.pop(chance.randrange(len(running))) for _ in range(min(2, len(running)))]
                    positions.done(done)
                    since += done
                case "fail" if running:
                    positions.again(running.pop(chance.randrange(len(running))))
                case "save":
                    saved = positions.place()
                    kept.update(since)
                    since.clear()
        place = saved
    assert set(kept.values()) == {1}
    assert set(kept) == set(range(place.first_open)) | set(place.done)
