"""The watchdog notices a stall and says where the time goes."""

import threading

import pytest

from gymtrain_trainer.activity import Activity, Doing
from gymtrain_trainer.monitoring.watchdog import Watchdog, where_time_goes
from gymtrain_trainer.progress import InFlight, ProgressBoard


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board() -> ProgressBoard:
    return ProgressBoard()


def watchdog(board: ProgressBoard, clock: Clock, unsynced: tuple[str, ...] = ()) -> Watchdog:
    return Watchdog(
        board,
        Activity(),
        before_first_step=600.0,
        unsynced_pods=lambda: unsynced,
        look_seconds=3600.0,
        clock=clock,
    )


def test_a_run_that_steps_as_usual_raises_nothing(board: ProgressBoard, clock: Clock) -> None:
    made = watchdog(board, clock)
    made.begin()
    for _ in range(5):
        clock.now += 60.0
        made.look()
        made.stepped()
    clock.now += 590.0
    made.look()
    assert board.snapshot().alarms == []
    made.end()


def test_a_step_that_takes_ten_times_the_usual_is_a_stall_until_the_next_one(
    board: ProgressBoard, clock: Clock
) -> None:
    made = watchdog(board, clock, ("http://10.0.0.1:8000",))
    board.in_flight = lambda: InFlight(3, 200.0, {"adder": 2, "judge": 1})
    made.begin()
    for _ in range(3):
        clock.now += 20.0
        made.stepped()
    clock.now += 201.0
    made.look()
    (alarm,) = board.snapshot().alarms
    assert alarm.reason == "Stalled"
    assert "no optimizer step for 201 s (usual: 20.0 s)" in alarm.message
    assert "3 rollout groups in flight (adder: 2, judge: 1), the oldest for 200 s" in alarm.message
    assert "vLLM pods that don't answer: http://10.0.0.1:8000" in alarm.message
    made.stepped()
    assert board.snapshot().alarms == []
    made.end()


def test_a_step_is_not_overdue_while_a_checkpoint_is_written(
    board: ProgressBoard, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", clock)
    made = watchdog(board, clock)
    made.begin()
    clock.now += 8.0
    made.stepped()
    with made.saving():
        clock.now += 300.0
        made.look()
    clock.now += 119.0
    made.look()
    assert board.snapshot().alarms == []
    clock.now += 2.0
    made.look()
    (alarm,) = board.snapshot().alarms
    assert "no optimizer step for 421 s" in alarm.message
    assert "300 s writing a checkpoint, 121 s in the training step" in alarm.message
    made.end()


def test_the_first_step_may_take_as_long_as_a_rollout(board: ProgressBoard, clock: Clock) -> None:
    made = watchdog(board, clock)
    made.begin()
    clock.now += 599.0
    made.look()
    assert board.snapshot().alarms == []
    clock.now += 2.0
    made.look()
    assert [alarm.reason for alarm in board.snapshot().alarms] == ["Stalled"]
    made.end()


def test_before_training_begins_nothing_is_due(board: ProgressBoard, clock: Clock) -> None:
    made = watchdog(board, clock)
    clock.now += 9999.0
    made.look()
    assert board.snapshot().alarms == []


def test_an_error_of_its_own_never_leaves_the_watchdog(board: ProgressBoard, clock: Clock) -> None:
    looked = threading.Semaphore(0)

    def broken() -> tuple[str, ...]:
        looked.release()
        raise RuntimeError("no pods")

    made = Watchdog(board, Activity(), before_first_step=0.0, unsynced_pods=broken, look_seconds=0.01, clock=clock)
    made.begin()
    clock.now += 9999.0
    assert looked.acquire(timeout=10)
    assert looked.acquire(timeout=10)  # it went on
    assert made._thread.is_alive()
    made.end()


def test_the_longest_part_of_the_wait_comes_first() -> None:
    spent = {Doing.STEP: 1.0, Doing.SYNC: 30.0, Doing.ROLLOUTS: 8.0}
    text = where_time_goes(spent, InFlight(), ())
    assert text.startswith("Since then: 30 s in weight sync, 8 s waiting for rollouts")
    assert "no rollout group in flight" in text


def test_activity_counts_nested_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("gymtrain_trainer.activity.time.monotonic", lambda: now[0])
    activity = Activity()
    now[0] += 1.0
    with activity.doing(Doing.ROLLOUTS):
        now[0] += 5.0
    now[0] += 2.0
    with activity.doing(Doing.SYNC):
        now[0] += 3.0
        assert activity.spent() == {Doing.ROLLOUTS: 5.0, Doing.SYNC: 3.0, Doing.SAVE: 0.0, Doing.STEP: 3.0}
    activity.mark()
    assert sum(activity.spent().values()) == 0.0


def test_an_evaluation_is_no_stall_and_the_time_counts_from_its_end(board: ProgressBoard, clock: Clock) -> None:
    evaluates = True
    made = Watchdog(
        board, Activity(), before_first_step=600.0, evaluates=lambda: evaluates, look_seconds=3600.0, clock=clock
    )
    made.begin()
    clock.now += 5000.0
    made.look()
    assert board.snapshot().alarms == []
    evaluates = False
    clock.now += 599.0
    made.look()
    assert board.snapshot().alarms == []
    clock.now += 2.0
    made.look()
    assert [alarm.reason for alarm in board.snapshot().alarms] == ["Stalled"]
