"""status.progress: the trainer's report, written when it says something new."""

from typing import Any

from gymtrain_api.status import Progress
from gymtrain_api.times import to_text
from gymtrain_api.wiring import TrainerProgress
from gymtrain_operator.reconcile.progress import parse_report, shown_progress

NOW = 1_800_000_000.0


def _report(step: int, phase: str = "training", at: float = NOW, **more: object) -> TrainerProgress:
    return TrainerProgress.model_validate({"phase": phase, "step": step, "updated_at": at, **more})


def test_numbers_are_decimal_text() -> None:
    shown = shown_progress(_report(3, reward=0.123456, tokens_per_second=12.34), None, NOW)
    assert shown is not None
    assert (shown.step, shown.reward, shown.tokens_per_second) == (3, "0.1235", "12.3")
    assert shown.last_update_time == to_text(NOW)


def test_without_a_report_the_last_one_stands() -> None:
    before = Progress(step=3)
    assert shown_progress(None, before, NOW) is before


def test_a_new_step_is_shown_at_once() -> None:
    before = shown_progress(_report(3), None, NOW)
    shown = shown_progress(_report(4, at=NOW + 1), before, NOW + 1)
    assert shown is not None
    assert shown.step == 4


def test_counters_alone_wait_a_little() -> None:
    before = shown_progress(_report(3, rollouts=10), None, NOW)
    assert shown_progress(_report(3, rollouts=11, at=NOW + 2), before, NOW + 2) is before
    later = shown_progress(_report(3, rollouts=12, at=NOW + 20), before, NOW + 20)
    assert later is not None
    assert later.rollouts == 12


def test_a_trainer_that_repeats_itself_writes_nothing() -> None:
    before = shown_progress(_report(3), None, NOW)
    assert shown_progress(_report(3, at=NOW + 60), before, NOW + 60) is before


def test_the_last_report_is_never_held_back() -> None:
    before = shown_progress(_report(3, rollouts=10), None, NOW)
    shown = shown_progress(_report(3, "complete", rollouts=11, at=NOW + 1), before, NOW + 1)
    assert shown is not None
    assert shown.rollouts == 11


def test_lost_rollouts_are_shown_by_environment_and_kind() -> None:
    lost = [{"environment": "sums", "kind": "timeout", "rollouts": 30 - number} for number in range(25)]
    shown = shown_progress(_report(3, lost_rollouts=lost), None, NOW)
    assert shown is not None
    assert shown.lost_rollouts is not None
    assert [one.model_dump() for one in shown.lost_rollouts] == lost[:20]


def test_without_lost_rollouts_the_status_has_no_list() -> None:
    shown = shown_progress(_report(3), None, NOW)
    assert shown is not None
    assert shown.lost_rollouts is None


def test_a_termination_message_may_be_anything() -> None:
    assert parse_report("Traceback ...") is None
    assert parse_report('{"phase": "unheard of"}') is None
    assert parse_report("[]") is None
    parsed = parse_report('{"phase": "failed", "message": "why"}')
    assert parsed is not None
    assert parsed.message == "why"


def test_an_evaluation_is_shown_at_once() -> None:
    before = shown_progress(_report(3), None, NOW)
    evaluated: dict[str, Any] = {
        "validation_reward": 0.51239,
        "validation_step": 2,
        "best_validation_reward": 0.75,
        "best_step": 0,
    }
    shown = shown_progress(_report(3, at=NOW + 1, **evaluated), before, NOW + 1)
    assert shown is not None
    assert (shown.validation_reward, shown.validation_step) == ("0.5124", 2)
    assert (shown.best_validation_reward, shown.best_step) == ("0.7500", 0)
