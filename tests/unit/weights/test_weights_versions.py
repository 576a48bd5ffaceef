"""Whether a group's weights can be trusted."""

import pytest

from gymtrain_trainer.weights import foreign_weights

POD = "http://10.0.0.5:8000"


@pytest.mark.parametrize("version", ["default", "demo:0:9", "other:1:3", "demo:11:3"])
@pytest.mark.parametrize("moment", ["started", "ended"])
def test_a_group_around_other_weights_is_discarded(version: str, moment: str) -> None:
    good: dict[str, str | None] = {POD: "demo:1:3"}
    bad: dict[str, str | None] = {POD: version}
    before, after = (bad, good) if moment == "started" else (good, bad)
    reason = foreign_weights(before, after, "demo", 1)
    assert reason is not None
    assert version in reason
    assert moment in reason


def test_a_group_across_a_sync_of_the_attempt_is_kept() -> None:
    assert foreign_weights({POD: "demo:1:3"}, {POD: "demo:1:4"}, "demo", 1) is None


def test_a_pod_that_does_not_answer_discards_nothing() -> None:
    assert foreign_weights({POD: "demo:1:3"}, {POD: None}, "demo", 1) is None
