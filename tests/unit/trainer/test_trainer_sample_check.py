"""The sample checker, with weights whose log-probabilities the test makes up."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gymtrain_trainer.errors import SettingsError
from gymtrain_trainer.framework import TrainingSample
from gymtrain_trainer.monitoring.sample_check import SampleChecker, share_to_check, tolerance_of
from gymtrain_trainer.progress import ProgressBoard


class Weights:
    """Version n gives every token the log-probability -n."""

    kept = (2, 3)

    def watch(
        self, version: int, stream: Iterator[tuple[str, Any]], dtype: str | None = None
    ) -> Iterator[tuple[str, Any]]:
        return stream

    def versions(self) -> list[int]:
        return list(self.kept)

    def log_probs(self, config: Any, version: int, ids: Sequence[int], temperature: float) -> list[float]:
        return [-float(version)] * (len(ids) - 1)


def sample(*versions: int, given: Sequence[float] = (-3.0, -3.0)) -> TrainingSample:
    return TrainingSample(
        token_ids=[7, 8, 9, 10],
        mask=[0, 0, 1, 1],
        log_probs=[0.0, 0.0, *given],
        versions=versions,
        group_id=1,
        rollout=0,
        agent="adder",
        reward=0.0,
    )


def checker(board: ProgressBoard, share: float = 1.0) -> SampleChecker:
    made = SampleChecker(Weights(), lambda: None, board, temperature=1.0, share=share)
    made.watch(1, iter(()), "float32")
    return made


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_sample_of_the_version_that_it_claims_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    board = ProgressBoard()
    made = checker(board)
    made.take(sample(3))
    made.report(5)
    (line,) = lines(capsys)
    assert line == {"event": "sample_check", "step": 5, "samples": 1, "mean": 0, "worst": 0, "wrong": 0, "unchecked": 0}
    assert board.tallies("checked_samples") == {"wrong": 0, "right": 1}


def test_a_sample_of_other_weights_is_wrong_and_the_total_says_so(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    made = checker(ProgressBoard())
    made.take(sample(2))
    made.take(sample(3))
    made.report(5)
    made.report(6)
    made.total()
    first, second, total = lines(capsys)
    assert (first["wrong"], first["worst"], second["samples"]) == (1, 1.0, 0)
    assert total == {"event": "sample_check_total", "samples": 2, "wrong": 1, "unchecked": 0}
    assert "claims weight version 2" in caplog.text
    assert "{2: 1.0, 3: 0.0}" in caplog.text


def test_each_token_of_a_mixed_sample_agrees_with_one_of_its_versions(capsys: pytest.CaptureFixture[str]) -> None:
    made = checker(ProgressBoard())
    made.take(sample(2, 3, given=(-2.0, -3.0)))
    made.take(sample(2, 3, given=(-2.0, -2.5)))
    made.report(1)
    assert lines(capsys)[0]["wrong"] == 1


def test_not_a_number_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    made = checker(ProgressBoard())
    made.take(sample(3, given=(float("nan"), -3.0)))
    made.report(1)
    assert lines(capsys)[0]["wrong"] == 1


def test_a_version_that_is_not_kept_any_more_is_counted_as_unchecked(capsys: pytest.CaptureFixture[str]) -> None:
    made = checker(ProgressBoard())
    made.take(sample(1))
    made.report(1)
    assert (lines(capsys)[0]["unchecked"]) == 1


def test_a_share_of_the_samples_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    made = checker(ProgressBoard(), share=0.25)
    for _ in range(400):
        made.take(sample(3))
    made.report(1)
    assert 60 < lines(capsys)[0]["samples"] < 140


def test_the_variable_is_a_share_and_nothing_else() -> None:
    assert [share_to_check({"GYMTRAIN_CHECK_SAMPLES": text}) for text in ("1", "0.25", "0", "")] == [1.0, 0.25, 0, 0]
    assert share_to_check({}) == 0
    for text in ("yes", "2", "-1", "nan"):
        with pytest.raises(SettingsError, match="GYMTRAIN_CHECK_SAMPLES"):
            share_to_check({"GYMTRAIN_CHECK_SAMPLES": text})


def test_half_precision_in_vllm_is_given_more_room() -> None:
    assert [tolerance_of("float32").of(tokens) for tokens in (1, 100)] == [0.005, 0.005]
    for half in (tolerance_of("bfloat16"), tolerance_of("float16"), tolerance_of(None)):
        assert [round(half.of(tokens), 3) for tokens in (1, 4, 10_000)] == [0.7, 0.4, 0.106]


def test_the_type_that_the_weights_are_sent_in_decides(capsys: pytest.CaptureFixture[str]) -> None:
    made = checker(ProgressBoard())
    made.take(sample(3, given=(-3.05, -3.05)))
    made.watch(4, iter(()), "bfloat16")
    made.take(sample(3, given=(-3.05, -3.05)))
    made.report(1)
    assert lines(capsys)[0]["wrong"] == 1


def test_what_rounding_did_to_the_tokens_of_the_right_weights_is_within_the_room() -> None:
    """The worst of 8,420 answers of benchmarks/gpu/rounding.py."""
    half = tolerance_of("bfloat16")
    for answer in ([0.163, 0.608], [0.094, 0.636], [0.061, 0.275, 0.256]):
        assert sum(answer) / len(answer) < half.of(len(answer))
    # Of weights eight steps older; 0.65 on average.
    assert half.of(3) < 0.65


def test_a_sample_that_a_grammar_held_is_not_called_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    made = checker(ProgressBoard())
    made.take(replace(sample(3, given=(-1.0, -1.0)), constrained=True))
    made.report(5)
    (line,) = lines(capsys)
    assert (line["wrong"], line["unchecked"]) == (0, 1)
