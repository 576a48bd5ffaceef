"""How the ends of runs in chaos are judged."""

from collections import Counter
from typing import Any

import pytest

from tests.chaos.story import Ends, Story, drawn_life, explained

LIFE = drawn_life(1, 1, ("ns",))


def _story() -> Story:
    return Story(LIFE, "uid")


def _run(state: str, attempt: int, *true: tuple[str, str], generation: int = 1) -> dict[str, Any]:
    conditions = [{"type": kind, "status": "True", "reason": reason} for kind, reason in true]
    status = {"state": state, "attempt": attempt, "conditions": conditions}
    return {"metadata": {"generation": generation}, "status": status}


def test_the_same_seed_draws_the_same_life() -> None:
    assert drawn_life(7, 3, ("a", "b")) == drawn_life(7, 3, ("a", "b"))
    assert drawn_life(7, 3, ("a", "b")) != drawn_life(8, 3, ("a", "b"))


def test_a_run_that_completes_is_as_it_should_be() -> None:
    story = _story()
    story.tell(_run("Training", 1))
    story.tell(_run("Complete", 1, ("Complete", "TrainingCompleted")))
    assert (story.judgement() == "") == (LIFE.kind not in ("bad", "refused"))
    assert story.wrong == []


def test_an_attempt_that_falls_is_wrong() -> None:
    story = _story()
    story.tell(_run("Training", 2))
    story.tell(_run("Training", 1))
    assert story.wrong == ["attempt 2 became 1"]


def test_an_end_that_is_taken_back_is_wrong() -> None:
    story = _story()
    story.tell(_run("Complete", 1, ("Complete", "TrainingCompleted")))
    story.tell(_run("Training", 1))
    assert story.wrong == ["TrainingCompleted became Training"]


def test_a_failure_that_a_change_mends_may_be_taken_back() -> None:
    story = _story()
    story.tell(_run("Failed", 0, ("Failed", "PreflightFailed")))
    story.tell(_run("Preflight", 0, generation=2))
    assert story.wrong == []


def test_nothing_is_told_by_a_status_that_a_fault_took_away() -> None:
    story = _story()
    story.hits["status"] += 1
    story.tell(_run("Complete", 3, ("Complete", "TrainingCompleted")))
    story.tell({"metadata": {}, "status": None})
    story.tell(_run("Complete", 3, ("Complete", "TrainingCompleted")))
    assert story.wrong == []


def test_a_run_that_never_ends_is_wrong_unless_somebody_deleted_it() -> None:
    story = _story()
    story.tell(_run("Training", 1))
    assert story.judgement().startswith("never ended: Training, attempt 1")
    story.by_hand = True
    assert story.judgement() == ""


@pytest.mark.parametrize(
    ("hits", "more"),
    [
        ({}, set()),
        ({"preflight": 1}, {"PreflightError"}),
        ({"attempt": LIFE.backoff_limit}, set()),
        ({"attempt": LIFE.backoff_limit + 1}, {"BackoffLimitExceeded"}),
        ({"status": 9, "record": 9}, set()),
    ],
)
def test_only_faults_explain_a_failure(hits: dict[Ends, int], more: set[str]) -> None:
    assert explained(LIFE, Counter(hits)) == explained(LIFE, Counter()) | more
