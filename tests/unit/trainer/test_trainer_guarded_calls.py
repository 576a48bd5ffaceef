"""Others' code never ends or holds up training: not by exceptions, and not by never coming back."""

import threading
import time
from collections.abc import Iterator

import pytest

from gymtrain_trainer.monitoring.guarded_calls import GuardedCalls


class Told:
    """What the alarm was told."""

    def __init__(self) -> None:
        self.words: list[str | None] = []

    def __call__(self, why: str | None) -> None:
        self.words.append(why)


def fail() -> None:
    raise ConnectionError("no route\nto host")


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_calls_are_made_in_order_in_another_thread(told: Told) -> None:
    calls, made = GuardedCalls("one", told), list[tuple[int, str]]()
    for number in range(5):
        calls.call(lambda number=number: made.append((number, threading.current_thread().name)))  # type: ignore[misc]
    assert calls.end(5)
    assert made == [(number, "guarded-one") for number in range(5)]
    assert told.words == []


def test_an_error_is_told_and_taken_back_by_the_next_call_that_works(told: Told) -> None:
    calls = GuardedCalls("one", told)
    calls.call(fail)
    calls.call(lambda: None)
    assert calls.end(5)
    assert told.words == ["failed: ConnectionError: no route to host", None]


def test_three_errors_in_a_row_switch_it_off(told: Told) -> None:
    calls, made = GuardedCalls("one", told), list[int]()
    for _ in range(3):
        calls.call(fail)
    assert calls.end(5)
    calls.call(lambda: made.append(1))
    assert calls.off
    assert len(told.words) == 3
    assert made == []


@pytest.mark.parametrize("error", [RuntimeError("no key"), SystemExit(1), KeyboardInterrupt()])
def test_a_vital_call_that_fails_switches_it_off_at_once(told: Told, error: BaseException) -> None:
    def start() -> None:
        raise error

    calls, made = GuardedCalls("one", told), list[int]()
    calls.call(start, vital=True)
    calls.call(lambda: made.append(1))
    assert calls.end(5)
    assert calls.off
    assert made == []
    assert len(told.words) == 1


def test_a_call_that_never_comes_back_holds_nobody_up(told: Told, stuck: threading.Event) -> None:
    calls = GuardedCalls("one", told, deadline=0.1)
    began = time.monotonic()
    calls.call(stuck.wait)
    time.sleep(0.3)
    calls.call(lambda: None)
    assert calls.off
    assert told.words == ["did not answer for 0.1 s"]
    assert not calls.end(0.1)
    assert time.monotonic() - began < 5
    assert len(told.words) == 1, "one reason is enough"


def test_one_that_hangs_at_the_end_is_left_behind(told: Told, stuck: threading.Event) -> None:
    calls = GuardedCalls("one", told)
    calls.call(stuck.wait)
    assert not calls.end(0.1)
    assert told.words == ["did not end within 0.1 s, so its last reports may be missing"]


def test_what_waits_is_bounded(told: Told, stuck: threading.Event) -> None:
    calls = GuardedCalls("one", told)
    for _ in range(70):
        calls.call(stuck.wait)
    assert calls.off
    assert told.words == ["is too slow: 64 reports wait"]


def test_what_comes_back_too_late_changes_nothing(told: Told, stuck: threading.Event) -> None:
    calls = GuardedCalls("one", told, deadline=0.05)
    calls.call(stuck.wait)
    time.sleep(0.2)
    calls.call(lambda: None)
    stuck.set()
    assert calls.end(5)
    assert told.words == ["did not answer for 0.05 s"]
