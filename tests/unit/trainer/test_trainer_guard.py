"""Groups sampled from other weights are found out."""

import asyncio

from gymtrain_trainer.rollouts.guard import Look, Versions, WeightGuard
from gymtrain_trainer.weights import foreign_weights


class FakeState:
    """vLLM servers of a test."""

    def __init__(self) -> None:
        self.versions: Versions = {"http://a": "run:1:3"}
        self.repaired = 0
        self.asked = 0
        self.delay = 0.0

    async def look(self) -> Look:
        self.asked += 1
        seen, before = dict(self.versions), self.repaired
        await asyncio.sleep(self.delay)
        return Look(seen, before, self.repaired)


def guard_of(state: FakeState) -> WeightGuard:
    return WeightGuard(state, lambda before, after: foreign_weights(before, after, "run", 1))


async def test_a_group_within_this_runs_weights_is_kept() -> None:
    state = FakeState()
    guard = guard_of(state)
    before = await guard.before()
    state.versions = {"http://a": "run:1:4"}  # a sync meanwhile is fine
    assert await guard.reason_to_discard(before) is None


async def test_base_weights_at_the_end_discard_the_group() -> None:
    state = FakeState()
    guard = guard_of(state)
    before = await guard.before()
    state.versions = {"http://a": "default"}
    assert "default" in (await guard.reason_to_discard(before) or "")


async def test_weights_of_an_earlier_attempt_discard_the_group() -> None:
    state = FakeState()
    state.versions = {"http://a": "run:0:9"}
    guard = guard_of(state)
    assert "run:0:9" in (await guard.reason_to_discard(await guard.before()) or "")


async def test_weights_that_were_lost_and_came_back_in_between_discard_the_group() -> None:
    state = FakeState()
    guard = guard_of(state)
    before = await guard.before()
    state.repaired += 1  # both looks show the run's weights
    assert "lost" in (await guard.reason_to_discard(before) or "")


async def test_groups_that_end_together_share_a_question() -> None:
    state = FakeState()
    guard = guard_of(state)
    before = await guard.before()
    state.delay = 0.05
    await asyncio.gather(*(guard.reason_to_discard(before) for _ in range(20)))
    assert state.asked == 2


async def test_a_question_on_its_way_does_not_answer_for_a_group_that_ends_later() -> None:
    state = FakeState()
    guard = guard_of(state)
    before = await guard.before()
    state.delay = 0.05
    first = asyncio.create_task(guard.reason_to_discard(before))
    await asyncio.sleep(0.02)  # asked, not answered yet
    state.versions = {"http://a": "default"}
    assert await guard.reason_to_discard(before) is not None
    assert await first is None


async def test_servers_that_nobody_can_reach_prove_nothing() -> None:
    for silent in ({}, {"http://a": None}):
        state = FakeState()
        guard = guard_of(state)
        before = await guard.before()
        state.versions = dict(silent)
        assert "no vLLM server said" in (await guard.reason_to_discard(before) or "")
