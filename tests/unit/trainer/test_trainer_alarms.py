"""When the numbers of a step are doubtful."""

import math

import pytest

from gymtrain_trainer.monitoring.step_alarms import Numbers, SampleAlarms, stall_limit
from gymtrain_trainer.progress import ProgressBoard


def raised(
    alarms: SampleAlarms,
    kl: float,
    ratio: float = 1.0,
    staleness: float = 1.0,
    *,
    first: bool = False,
    dtype: str | None = "float32",
) -> set[str]:
    verdict = alarms.look(Numbers(kl, ratio, staleness, first, dtype=dtype))
    return {reason for reason, message in verdict.items() if message is not None}


def test_a_healthy_run_raises_nothing() -> None:
    alarms = SampleAlarms()
    assert raised(alarms, 0.0, 1.0, 0.0, first=True) == set()
    for step in range(40):
        assert raised(alarms, 0.002 + 0.004 * (step % 3) / 2, 1 + 0.01 * (-1) ** step) == set()


def test_weights_that_did_not_all_arrive_raise_the_kl() -> None:
    alarms = SampleAlarms()
    found = [raised(alarms, 0.017) for _ in range(30)]
    assert found == [set()] * 7 + [{"KLHigh"}] * 23  # it never becomes the usual


def test_a_few_steps_of_fast_learning_raise_nothing() -> None:
    """As the quickstart's on a GPU, steps 15 to 20."""
    alarms = SampleAlarms()
    steps = [(0.0281, 1.6), (0.0281, 2.4), (0.0417, 2.0), (0.0384, 1.6), (0.1467, 1.5), (0.0141, 1.6)]
    assert [raised(alarms, kl, staleness=staleness, dtype="bfloat16") for kl, staleness in steps] == [set()] * 6


def test_the_first_steps_of_a_run_may_be_large_and_never_become_the_usual() -> None:
    alarms = SampleAlarms()
    for step in range(2, 11):
        verdict = alarms.look(Numbers(0.05, 1.0, 1.0, step=step))
        assert verdict["KLHigh"] is None
    assert [raised(alarms, 0.05) for _ in range(8)][-1] == {"KLHigh"}


def test_weights_that_are_far_off_raise_the_kl_in_the_first_steps_too() -> None:
    alarms = SampleAlarms()
    verdicts = [alarms.look(Numbers(0.3, 1.0, 1.0, step=step)).get("KLHigh") for step in (2, 3)]
    assert verdicts[-1] is not None


def test_one_noisy_step_raises_nothing() -> None:
    alarms = SampleAlarms()
    assert [raised(alarms, kl) for kl in (0.004, 0.05, 0.004, 0.05)] == [set()] * 4


def test_an_alarm_clears_itself() -> None:
    alarms = SampleAlarms()
    raised(alarms, 0.07)
    assert raised(alarms, 0.07) == {"KLHigh"}
    assert alarms.look(Numbers(0.004, 1.0, 1.0))["KLHigh"] is None


def test_the_kl_may_grow_with_staleness() -> None:
    far, near = SampleAlarms(), SampleAlarms()
    assert [raised(far, 0.03, staleness=4.0) for _ in range(8)][-1] == set()
    assert [raised(near, 0.03, staleness=1.0) for _ in range(8)][-1] == {"KLHigh"}


def test_steps_between_two_syncs_count_as_staleness() -> None:
    often, seldom = SampleAlarms(1), SampleAlarms(8)
    assert [raised(often, 0.04) for _ in range(8)][-1] == {"KLHigh"}
    assert [raised(seldom, 0.04) for _ in range(8)][-1] == set()


def test_a_run_with_large_steps_has_its_own_usual() -> None:
    alarms = SampleAlarms()
    for kl in (0.012, 0.014, 0.014, 0.014, 0.03, 0.03):  # grows, never past four times its median
        assert raised(alarms, kl) == set()
    assert [raised(alarms, 0.2) for _ in range(8)][-1] == {"KLHigh"}


@pytest.mark.parametrize(("kl", "ratio", "alarm"), [(0.004, 1.0, "KLHigh"), (0.0, 1.05, "RatioOff")])
def test_the_first_fresh_step_must_be_exact_and_alarms_at_once(kl: float, ratio: float, alarm: str) -> None:
    assert raised(SampleAlarms(), kl, ratio, 0.0, first=True) == {alarm}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", None])
def test_half_precision_in_vllm_leaves_the_first_fresh_step_some_room(dtype: str | None) -> None:
    assert raised(SampleAlarms(), 0.005, 1.006, 0.0, first=True, dtype=dtype) == set()
    assert raised(SampleAlarms(), 0.017, 1.0, 0.0, first=True, dtype=dtype) == {"KLHigh"}


def test_a_ratio_off_on_both_sides_alarms() -> None:
    for ratio in (0.9, 1.1, math.nan):
        alarms = SampleAlarms()
        assert [raised(alarms, 0.004, ratio) for _ in range(2)][-1] == {"RatioOff"}


def test_a_step_without_the_numbers_settles_nothing() -> None:
    assert SampleAlarms().look(Numbers(None, None, 0.0)) == {}


def test_a_run_stalls_at_ten_times_its_usual_but_never_within_two_minutes() -> None:
    assert stall_limit([30.0, 40.0, 500.0], 1800.0) == 400.0
    assert stall_limit([1.0], 1800.0) == 120.0
    assert stall_limit([1.0], 1800.0, saving=300.0) == 420.0
    assert stall_limit([1.0], 1800.0, saving=9999.0) == 1920.0
    assert stall_limit([], 1800.0) == 1800.0


def test_a_standing_alarm_keeps_its_time_and_its_place_in_the_progress() -> None:
    board = ProgressBoard()
    board.set_alarm("ParityOff", "first")
    (before,) = board.snapshot().alarms
    board.set_alarm("ParityOff", "second")
    (after,) = board.snapshot().alarms
    assert (after.message, after.since) == ("second", before.since)
    board.clear_alarm("KLHigh")
    assert board.tallies("alarms") == {"ParityOff": 1}
    board.clear_alarm("ParityOff")
    assert board.snapshot().alarms == []


def messages(constrained: float) -> list[str]:
    """Of both alarms, raised."""
    alarms = SampleAlarms()
    verdicts = [alarms.look(Numbers(0.5, 0.5, 1.0, step=20, constrained=constrained)) for _ in range(2)]
    return [message for message in verdicts[-1].values() if message]


def test_samples_that_a_grammar_held_are_named_as_a_cause() -> None:
    assert len(messages(0.25)) == 2
    assert all("A grammar held turns of 25 % of these samples" in message for message in messages(0.25))
    assert all("1 % of these" in message for message in messages(0.001))


def test_without_a_grammar_none_is_blamed() -> None:
    assert len(messages(0.0)) == 2
    assert not any("grammar" in message for message in messages(0.0))
