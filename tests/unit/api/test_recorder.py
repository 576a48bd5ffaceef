"""The api ring's judgement of a history of statuses."""

from typing import Any

from tests.support.recorder import falls, flaps


def _status(*conditions: tuple[str, str, str], **fields: Any) -> dict[str, Any]:
    return {"conditions": [{"type": t, "status": s, "reason": r} for t, s, r in conditions], **fields}


def test_a_condition_that_goes_forward_does_not_flap() -> None:
    history = [
        ("GymReady", "False", "PodsStarting"),
        ("GymReady", "True", "AllReady"),
        ("GymReady", "False", "Finished"),
    ]
    assert flaps([_status(entry) for entry in history]) == []


def test_a_condition_that_comes_back_flaps() -> None:
    history = [
        ("GymReady", "False", "PodsStarting"),
        ("GymReady", "True", "AllReady"),
        ("GymReady", "False", "PodsStarting"),
    ]
    assert flaps([_status(entry) for entry in history]) == [
        "GymReady: False/PodsStarting -> True/AllReady -> False/PodsStarting"
    ]


def test_a_status_written_twice_does_not_flap() -> None:
    assert flaps([_status(("GymReady", "True", "AllReady"))] * 3) == []


def test_a_number_that_vanishes_falls() -> None:
    history = [_status(progress={"step": 2}), _status(progress={"step": 3}), _status()]
    assert falls(history, "progress", "step") == [(3, -1)]
