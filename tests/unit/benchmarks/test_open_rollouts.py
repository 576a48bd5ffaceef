"""The benchmark of many open rollouts: what its stand-in answers, what its figures come to, and a small run of it."""

import json
from dataclasses import replace

import pytest

from benchmarks.open_rollouts.__main__ import measure
from benchmarks.open_rollouts.answers import Answers
from benchmarks.open_rollouts.figures import Found, Reading, as_json, rows_as_table
from benchmarks.open_rollouts.load import Load
from benchmarks.open_rollouts.rank_zero import Trained
from benchmarks.processes import Usage
from gymtrain_api.ledger import token_digest
from gymtrain_trainer.framework import SampleGroup, TrainingSample
from gymtrain_trainer.rollouts.answer import parse_answer
from gymtrain_trainer.rollouts.samples import chains

_LOAD = Load(turns=3, prompt=4, sampled=5)
_MIB = 1 << 20


def test_the_turns_of_an_answer_go_on_from_each_other_and_begin_with_the_rollouts_number() -> None:
    answer = parse_answer(json.loads(Answers(_LOAD).body(77)))
    (chain,) = chains(answer.turns, 0)
    assert len(chain.token_ids) == _LOAD.tokens == 27
    assert sum(chain.mask) == answer.generated == 15
    assert chain.token_ids[0] == 77


def test_every_second_rollout_has_a_reward() -> None:
    made = Answers(_LOAD)
    assert [parse_answer(json.loads(made.body(number))).reward for number in (4, 5)] == [0.0, 1.0]


def test_the_ledgers_digests_are_those_that_the_trainer_asks_for() -> None:
    made = Answers(_LOAD)
    turns = parse_answer(json.loads(made.body(70_000))).turns
    asked = [token_digest(turn.prompt_ids, turn.output_ids) for turn in turns]
    assert [digest.hex() for digest in made.digests(70_000)] == asked


def group(*numbers: int, sampled: int = 15) -> SampleGroup:
    """Of the rollouts with these numbers."""
    mask = [0] * (_LOAD.tokens - sampled) + [1] * sampled
    columns = [0.0] * _LOAD.tokens
    samples = tuple(
        TrainingSample([number] * _LOAD.tokens, mask, columns, (1,), 0, place, "stand_in", 0.0)
        for place, number in enumerate(numbers)
    )
    return SampleGroup(0, "stand_in", (0.0,) * len(samples), samples)


def test_a_rollout_that_is_trained_twice_counts_once_and_is_told() -> None:
    trained = Trained(_LOAD, 16)
    trained.take(group(6, 7))
    trained.take(group(8, 7))
    assert (trained.count, trained.twice, trained.wrong) == (3, 1, 0)


def test_samples_without_all_tokens_that_were_sampled_are_told() -> None:
    trained = Trained(_LOAD, 16)
    trained.take(group(6, 7, sampled=14))
    assert (trained.count, trained.wrong) == (2, 2)


def reading(step: int, *, answered: int, open_: int, resident: int, cpu: float = 0.0) -> Reading:
    """One after `step`, in the tenth second of it. `resident`: MiB of rank 0; its children have half as much."""
    return Reading(
        at=10.0 * step,
        step=step,
        trained=answered,
        begun=answered + open_,
        answered=answered,
        open=open_,
        most_open=open_,
        main=Usage(cpu, resident * _MIB),
        trainer=Usage(cpu / 10, resident * _MIB),
        children=Usage(2 * cpu, resident * _MIB // 2),
        stand_in=Usage(cpu, 7 * _MIB),
        files=open_ + 3,
    )


# One step of warm-up. 100 are open from step 2 on, and the first whole generation of such has ended at step 3.
_END = {"trained": 600, "trained_twice": 0, "wrong": 0, "dropped_groups": {}, "failed_rollouts": {}}
_READINGS = (
    reading(0, answered=0, open_=0, resident=10),
    reading(1, answered=50, open_=120, resident=500),
    reading(2, answered=249, open_=100, resident=20),
    reading(3, answered=250, open_=100, resident=40, cpu=1.0),
    reading(4, answered=450, open_=100, resident=44, cpu=3.0),
    reading(5, answered=550, open_=50, resident=60, cpu=9.0),
    reading(6, answered=600, open_=0, resident=8, cpu=9.5),
)
_FOUND = Found(readings=_READINGS, warm_steps=1, rollouts=600, end=_END)


def test_growth_is_between_two_moments_at_which_all_rollouts_were_open() -> None:
    figures = {result.figure: result.value for result in _FOUND.results()}
    assert figures["most open at once"] == 100
    assert figures["growth between them"] == pytest.approx(6.0)  # MiB of rank 0 and its children
    assert figures["generations between the readings of the full process"] == 2.0
    assert figures["rollouts per second"] == 20.0


def test_memory_is_told_after_each_full_generation() -> None:
    rows = {row.figure: row.values for row in _FOUND.rows()}
    assert rows["resident after full generation 1"] == (40.0, None, 20.0, 7.0)
    assert rows["resident after full generation 2"] == (44.0, None, 22.0, 7.0)
    assert "resident after full generation 3" not in rows


def test_cpu_is_by_process_and_for_the_rollouts_of_the_same_time() -> None:
    assert as_json([], _FOUND.rows())["CPU for 1,000 rollouts, s"] == {
        "rank 0": 10.0,
        "of it the trainer's thread": 1.0,
        "rank 0's children": 20.0,
        "stand-in": 10.0,
    }
    assert "| share of a core | 20.00 % | 2.00 % | 40.00 % | 20.00 % |" in rows_as_table(_FOUND.rows())


def test_a_rollout_that_nobody_trained_on_is_lost_and_a_dropped_group_is_told() -> None:
    found = replace(_FOUND, end=_END | {"trained": 584, "dropped_groups": {"Stale": 1}})
    missed = {result.figure for result in found.results() if result.aim is not None and result.value > result.aim}
    assert missed == {"lost", "groups dropped: Stale"}


def test_a_run_that_is_never_full_for_long_says_that_nothing_is_seen_of_growth() -> None:
    with pytest.raises(ValueError, match="more generations"):
        replace(_FOUND, rollouts=400).full()


def test_a_small_run_loses_no_rollout_and_has_all_open_at_once() -> None:
    load = Load(rollouts=64, step=16, generations=4, group_size=4, warm_seconds=0.05, seconds=0.5)
    found = measure(load)
    assert (found.lost, found.end["trained"], found.end["trained_twice"]) == (0, found.rollouts, 0)
    assert (found.end["wrong"], found.end["dropped_groups"]) == (0, {})
    assert found.most_open == 64
    assert found.readings[-1].main.cpu > found.readings[0].main.cpu > 0
