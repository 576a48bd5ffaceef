"""Whose turn it is."""

import pytest

from gymtrain_broker.policy.claims import FairQueue


def _filled(*items: str) -> FairQueue:
    """Each item's task is its first letter."""
    queue = FairQueue()
    for item in items:
        queue.put(item, item[0])
    return queue


def _drained(queue: FairQueue) -> list[str]:
    return [queue.pop() for _ in range(len(queue))]


def test_tasks_with_one_request_each_are_served_as_they_came() -> None:
    assert _drained(_filled("a1", "b1", "c1")) == ["a1", "b1", "c1"]


def test_a_task_with_many_requests_does_not_starve_another() -> None:
    queue = _filled(*(f"a{number}" for number in range(64)), "b1")
    assert _drained(queue)[:3] == ["a0", "b1", "a1"]


def test_a_task_s_own_requests_keep_their_order() -> None:
    assert _drained(_filled("a1", "b1", "a2", "b2", "a3")) == ["a1", "b1", "a2", "b2", "a3"]


def test_positions_say_in_which_order_they_will_be_served() -> None:
    items = ["a1", "a2", "a3", "b1", "b2", "c1"]
    queue = _filled(*items)
    positions = {item: queue.position(item) for item in items}
    assert _drained(queue) == sorted(items, key=lambda item: positions[item] or 0)
    assert queue.position("a1") is None


def test_positions_hold_in_the_middle_of_a_round() -> None:
    queue = _filled("a1", "a2", "b1", "c1", "c2")
    assert queue.pop() == "a1"
    positions = {item: queue.position(item) for item in ("a2", "b1", "c1", "c2")}
    assert _drained(queue) == sorted(positions, key=lambda item: positions[item] or 0)


def test_what_is_put_back_is_next() -> None:
    queue = _filled("a1", "b1", "b2")
    assert queue.pop() == "a1"
    queue.put_back("a1", "a")
    assert queue.position("a1") == 1
    assert _drained(queue) == ["a1", "b1", "b2"]


def test_what_is_removed_is_skipped() -> None:
    queue = _filled("a1", "b1", "a2")
    queue.remove("b1")
    queue.remove("never there")
    assert len(queue) == 2
    assert _drained(queue) == ["a1", "a2"]


def test_an_empty_queue_has_no_next() -> None:
    with pytest.raises(KeyError, match="empty"):
        FairQueue().pop()
