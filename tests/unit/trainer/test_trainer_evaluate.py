"""Rollouts of evaluations in the rollouts' process: which weights and which temperature sampled them."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from gymtrain_api.ledger import token_digest
from gymtrain_api.sampling import marked
from gymtrain_trainer.errors import DropReason, GroupDroppedError
from gymtrain_trainer.rollouts.evaluate import EvaluationRules
from gymtrain_trainer.rollouts.group import GroupRules
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from tests.unit.trainer.test_trainer_rollout_process import Scene, scene, settings, until
from tests.unit.trainer.trainer_agent import good_answer, inner_server_died
from tests.unit.trainer.trainer_gateway import GATEWAYS, Gateway, at_its_place, entry

DIGEST = token_digest([1, 2, 3], [7, 8])  # of good_answer's turn
GREEDY = 0.0


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # pytest's own, by pyproject.toml


@asynccontextmanager
async def evaluating() -> AsyncIterator[tuple[Scene, Gateway]]:
    """A run at temperature 1, evaluated greedily; the servers hold its second version."""
    gateway = Gateway()
    made = replace(
        settings(GATEWAYS),
        rules=GroupRules(2, 1, temperature=1.0),
        evaluation=EvaluationRules(RolloutLimits(1, 600.0, 1), Sampling(marked(GREEDY), 8), GREEDY),
    )
    async with at_its_place(gateway), scene(made=made) as found:
        found.sync("run:1:2")
        yield found, gateway


async def test_a_rollout_of_the_evaluations_weights_and_temperature_counts() -> None:
    async with evaluating() as (made, gateway):
        gateway.entries[DIGEST] = entry("run:1:2", temperatures=(GREEDY,), finish="length")
        ended = await made.process.evaluate(made.task(), 2)
        assert (ended.reward, ended.failure, ended.tokens, ended.truncated) == (1.0, "", 2, True)
        (request,) = made.agent.requests
        assert request["responses_create_params"]["temperature"] == marked(GREEDY)


async def test_an_equal_call_of_earlier_weights_or_of_the_training_does_not_count_against_it() -> None:
    async with evaluating() as (made, gateway):
        gateway.entries[DIGEST] = entry("run:1:1", "run:1:2", temperatures=(1.0, GREEDY))
        assert (await made.process.evaluate(made.task(), 2)).reward == 1.0
        assert (await made.process.run(made.task())).rollouts[0].reward == 1.0


@pytest.mark.parametrize("versions", [("run:1:1",), ("run:1:2", "run:1:3"), ("default",), ("run:0:2",)])
async def test_other_weights_fail_it_once_it_was_made_three_times(versions: tuple[str, ...]) -> None:
    async with evaluating() as (made, gateway):
        gateway.entries[DIGEST] = entry(*versions, temperatures=(GREEDY,))
        ended = await made.process.evaluate(made.task(), 2)
        assert (ended.reward, ended.failure) == (None, "weights")
        assert len(made.agent.requests) == 3


async def test_weights_that_are_right_the_second_time_are_enough() -> None:
    async with evaluating() as (made, gateway):
        gateway.entries[DIGEST] = entry("run:1:1", temperatures=(GREEDY,))

        def second(row: dict[str, object], number: int) -> web.Response:
            if number == 2:
                gateway.entries[DIGEST] = entry("run:1:2", temperatures=(GREEDY,))
            return good_answer(row)

        made.agent.behaviour = second
        assert (await made.process.evaluate(made.task(), 2)).reward == 1.0


async def test_an_agent_with_a_temperature_of_its_own_fails_it_and_is_told() -> None:
    async with evaluating() as (made, gateway):
        gateway.entries[DIGEST] = entry("run:1:2", temperatures=(1.0,))
        ended = await made.process.evaluate(made.task(), 2)
        assert ended.failure == "temperature"
        assert "temperature 1, not at 0" in ended.error


async def test_no_group_is_trained_on_that_was_sampled_for_an_evaluation() -> None:
    async with evaluating() as (made, gateway):
        gateway.entries[DIGEST] = entry("run:1:2", temperatures=(GREEDY,))
        with pytest.raises(GroupDroppedError, match="temperature 0, not at 1") as dropped:
            await made.process.run(made.task())
        assert dropped.value.reason is DropReason.OTHER_TEMPERATURE
        gateway.entries[DIGEST] = entry("run:1:2", temperatures=(1.0,))
        assert (await made.process.run(made.task())).samples.samples


async def test_a_failed_rollout_says_whose_doing_it_is() -> None:
    async with evaluating() as (made, _):
        made.agent.behaviour = lambda row, number: inner_server_died()
        ended = await made.process.evaluate(made.task(), 2)
        assert (ended.reward, ended.failure) == (None, "infrastructure")
        assert "gone" in ended.error


async def test_one_that_nobody_waits_for_makes_room_for_the_next() -> None:
    async with evaluating() as (made, gateway):
        gateway.entries[DIGEST] = entry("run:1:2", temperatures=(GREEDY,))

        async def first_never(row: dict[str, object], number: int) -> web.Response:
            await asyncio.sleep(3600 if number == 1 else 0)
            return good_answer(row)

        made.agent.behaviour = first_never
        rollout = asyncio.create_task(made.process.evaluate(made.task(), 2))
        await until(lambda: bool(made.agent.requests))
        rollout.cancel()
        async with asyncio.timeout(60):  # its own deadline is 600 s
            assert (await made.process.evaluate(made.task(), 2)).reward == 1.0
