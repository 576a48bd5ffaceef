"""The reward curve out of trainer logs."""

import json
from pathlib import Path

import pytest

from gymtrain_cli import curve
from gymtrain_cli.curve import ends, smoothed
from gymtrain_client.errors import NoStepsError
from gymtrain_client.steps import Step, parse_steps


def _line(step: int, reward: float) -> str:
    return json.dumps({"event": "step", "step": step, "reward": reward})


def test_steps_are_found_between_other_lines() -> None:
    lines = ["INFO starting", _line(1, 0.5), "{broken", '{"event": "sync"}', _line(2, 0.75)]
    assert parse_steps(lines) == [Step(1, 0.5), Step(2, 0.75)]


def test_a_later_attempt_replaces_the_steps_that_it_repeats() -> None:
    lines = [_line(1, 0.1), _line(2, 0.2), _line(3, 0.3), _line(2, 0.9)]
    assert parse_steps(lines) == [Step(1, 0.1), Step(2, 0.9)]


def test_smoothing_is_a_trailing_mean() -> None:
    assert smoothed([Step(1, 0.0), Step(2, 1.0), Step(3, 2.0)], window=2) == [0.0, 0.5, 1.5]


def test_the_ends_are_means_of_the_first_and_last_five_steps() -> None:
    assert ends([Step(i, float(i)) for i in range(1, 11)]) == (3.0, 8.0)


def test_a_curve_is_drawn_as_text_and_as_a_png(tmp_path: Path) -> None:
    steps = [Step(i, i / 10) for i in range(1, 11)]
    text = curve.draw_text("r", steps)
    assert "mean reward by step" in text
    assert "\x1b" not in text, "no colour codes: the text goes into files too"
    curve.draw_png("r", steps, tmp_path / "new" / "r.png")
    assert (tmp_path / "new" / "r.png").read_bytes().startswith(b"\x89PNG")


def test_without_steps_it_says_what_to_do() -> None:
    with pytest.raises(NoStepsError, match="kubectl gymtrain watch r"):
        curve.draw_text("r", [])
