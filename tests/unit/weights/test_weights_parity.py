"""The comparison of log-probabilities."""

import math

import pytest

from gymtrain_trainer.weights import ParityCheck, WeightParityError
from gymtrain_trainer.weights.parity import Sample, judge

SAMPLES = [Sample([1], [2, 3], [-1.0, -2.0]), Sample([4], [5, 6], [-3.0, -4.0])]


def check(shift: float, threshold: float | None = None) -> ParityCheck:
    theirs = {tuple(one.completion): one.logprobs for one in SAMPLES}
    return ParityCheck(
        lambda _, completion: [value + shift for value in theirs[tuple(completion)]], [[1], [4]], threshold
    )


def test_the_mean_difference_is_over_all_tokens() -> None:
    assert judge("pod", SAMPLES, check(0.01), "float32") == pytest.approx(0.01)


def test_a_difference_above_the_threshold_is_refused_with_the_pod_and_a_way_out() -> None:
    with pytest.raises(WeightParityError, match=r"http://pod .* mean difference 0\.5 .*--load-format=auto"):
        judge("http://pod", SAMPLES, check(0.5), "float32")


def test_half_precision_may_differ_more() -> None:
    assert judge("pod", SAMPLES, check(0.05), "bfloat16") == pytest.approx(0.05)
    with pytest.raises(WeightParityError):
        judge("pod", SAMPLES, check(0.05), "float32")


def test_a_threshold_of_ones_own_wins() -> None:
    with pytest.raises(WeightParityError, match=r"allowed 0\.001"):
        judge("pod", SAMPLES, check(0.01, 0.001), "float32")


def test_no_number_is_no_parity() -> None:
    with pytest.raises(WeightParityError):
        judge("pod", SAMPLES, check(math.nan), "float32")
