"""Where a rollout's seconds went."""

import json
from dataclasses import replace

import pytest

from gymtrain_api.ledger import CallTimes, LedgerEntry
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import AgentError, RolloutError
from gymtrain_trainer.rollouts.answer import Answer, Turn, UnscoredError
from gymtrain_trainer.rollouts.hops import Hops, hops_of
from gymtrain_trainer.rollouts.http import HttpSource
from gymtrain_trainer.rollouts.origins import rollouts_of
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from gymtrain_trainer.weights import SyncNumbers

TURNS = [Turn.of([1, 2], [3], [-0.5]), Turn.of([1, 2, 3, 4], [5, 6], [-0.5, -0.5])]
ANSWER = Answer(TURNS, 1.0, "", False, seconds=10.0, began=1000.0, slot_seconds=0.5, earlier_seconds=2.0)


def call(start: float, end: float, queued: float = 0.0, sampled: float = 0.0) -> CallTimes:
    """By the seconds of the try in which it was open."""
    return CallTimes(seconds=end - start, queued=queued, sampled=sampled, ended=1000.0 + end)


def test_what_lies_between_the_calls_is_told_apart() -> None:
    hops = hops_of(ANSWER, [call(1.0, 4.0, 0.5, 2.0), call(6.0, 8.5, 0.25, 2.0)])
    assert hops == Hops(0.5, 2.0, start_s=1.0, model_s=5.5, queue_s=0.75, vllm_s=4.0, tools_s=2.0, verify_s=1.5)
    assert (hops.start_s or 0) + (hops.model_s or 0) + (hops.tools_s or 0) + (hops.verify_s or 0) == ANSWER.seconds


def test_calls_side_by_side_count_once() -> None:
    hops = hops_of(ANSWER, [call(2.0, 6.0), call(1.0, 5.0)])
    assert (hops.start_s, hops.model_s, hops.tools_s, hops.verify_s) == (1.0, 5.0, 0.0, 4.0)


def test_a_call_within_another_adds_nothing() -> None:
    hops = hops_of(ANSWER, [call(1.0, 9.0), call(2.0, 3.0)])
    assert (hops.model_s, hops.tools_s, hops.verify_s) == (8.0, 0.0, 1.0)


def test_no_bar_is_outside_the_try() -> None:
    hops = hops_of(ANSWER, [call(-0.25, 4.0), call(5.0, 10.25)])
    assert (hops.start_s, hops.model_s, hops.tools_s, hops.verify_s) == (0.0, 9.0, 1.0, 0.0)


@pytest.mark.parametrize("calls", [[], [call(1.0, 2.0), None]])
def test_without_the_times_of_every_call_what_lies_between_is_unknown(calls: list[CallTimes | None]) -> None:
    assert hops_of(ANSWER, calls).numbers() == {"slot_s": 0.5, "earlier_s": 2.0}


def test_each_call_is_told_where_it_is_asked_for() -> None:
    told = hops_of(ANSWER, [call(1.0, 4.0, 0.5, 2.0), None], each=True).calls
    assert json.loads(told) == [
        {"at": 1.0, "seconds": 3.0, "queue": 0.5, "vllm": 2.0, "prompt": 2, "tokens": 1},
        {"at": None, "seconds": None, "queue": None, "vllm": None, "prompt": 4, "tokens": 2},
    ]


def times_in(*ends: tuple[float, float] | None) -> CallTimes | None:
    """Of a rollout of one turn, where pods' ledgers have calls with its tokens in these seconds of the try."""
    one = replace(ANSWER, turns=TURNS[:1])
    entries = [LedgerEntry(versions=["run:1:1"], times=call(*end) if end else None) for end in ends]
    (rollout,) = rollouts_of([one], {TURNS[0].digest: entries}, SyncNumbers("run", 1, 0), 1)
    return rollout.origins[0].times


def test_an_earlier_rollouts_call_with_the_same_tokens_is_not_this_ones() -> None:
    assert times_in((-50.0, -48.0)) is None
    assert times_in((12.0, 14.0)) is None
    assert times_in(None) is None
    assert times_in((-50.0, -48.0), (1.0, 4.0)) == call(1.0, 4.0)


class Tries(HttpSource):
    """Each of which ends as it is told to."""

    def __init__(self, *ends: Answer | RolloutError) -> None:
        super().__init__(RolloutLimits(1, 10.0, len(ends)), Sampling(1.0, 8))
        self._ends = list(ends)

    async def _once(self, task: Task) -> Answer:
        end = self._ends.pop(0)
        if isinstance(end, RolloutError):
            raise end
        return end


TASK = Task(0, "adder", "http://agent", {})


async def test_tries_that_failed_are_told_apart_from_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymtrain_trainer.rollouts.http._BACKOFF_SECONDS", 0.02)
    async with Tries(AgentError("away"), replace(ANSWER, seconds=0.0)) as source:
        answer = await source.run(TASK)
    assert answer.tries == 2
    assert answer.earlier_seconds >= 0.01
    assert answer.slot_seconds < answer.earlier_seconds
    assert answer.began > ANSWER.began


async def test_a_try_without_a_reward_is_timed_too() -> None:
    unscored = UnscoredError("no reward", RolloutError("").kind, replace(ANSWER, began=0.0, tries=0))
    async with Tries(unscored) as source:
        with pytest.raises(UnscoredError) as raised:
            await source.run(TASK)
    assert raised.value.answer.tries == 1
    assert raised.value.answer.began > 0
