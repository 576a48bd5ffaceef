"""One group, with a real agent, a real gateway's ledger, and every reason for which it can't be used."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gymtrain_api.ledger import LedgerEntry, token_digest
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import DropReason, GroupDroppedError
from gymtrain_trainer.framework import SampleGroup
from gymtrain_trainer.rollouts import http as http_module
from gymtrain_trainer.rollouts import ledger as ledger_module
from gymtrain_trainer.rollouts.client import AgentSource
from gymtrain_trainer.rollouts.group import GroupRules, GroupRunner
from gymtrain_trainer.rollouts.guard import WeightGuard
from gymtrain_trainer.rollouts.ledger import Ledger
from gymtrain_trainer.rollouts.origins import Rollout
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from gymtrain_trainer.rollouts.summary import RolloutSummary
from gymtrain_trainer.weights import SyncNumbers, foreign_weights
from tests.unit.trainer.trainer_agent import Agent, good_answer, inner_server_died
from tests.unit.trainer.trainer_data import group as sample_group
from tests.unit.trainer.trainer_data import question
from tests.unit.trainer.trainer_gateway import Gateway, dns, entry, serving
from tests.unit.trainer.trainer_groups import Heard, Servers

DIGEST = token_digest([1, 2, 3], [7, 8])  # of good_answer's turn


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(ledger_module, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(ledger_module, "_AGAIN_LIMIT_SECONDS", 0.02)


class Scene:
    """All that a group meets."""

    def __init__(self, agent: Agent, gateway: Gateway, runner: GroupRunner) -> None:
        self.agent = agent
        self.gateway = gateway
        self.runner = runner

    async def run(self) -> tuple[RolloutSummary, ...]:
        return (await self.runner.run(Task(4, "adder", self.agent.url, question(1)))).rollouts

    async def reason(self) -> DropReason:
        with pytest.raises(GroupDroppedError) as dropped:
            await self.run()
        return dropped.value.reason


@asynccontextmanager
async def scene(known: LedgerEntry | None = None, pods: Servers | None = None) -> AsyncIterator[Scene]:
    numbering = SyncNumbers("run", 1)
    for number in range(1, 10):
        numbering.sent(f"run:1:{number}")
    gateway = Gateway({DIGEST: known} if known else {})

    def any_samples(rollouts: Sequence[Rollout], task: Task) -> SampleGroup:
        return sample_group(task.position)

    async with (
        Agent() as agent,
        serving(gateway) as found,
        Ledger("gateways", find=dns(found)) as ledger,
        AgentSource(RolloutLimits(8, 5.0, 1), Sampling(1.0, 8)) as source,
    ):
        guard = WeightGuard(pods or Servers("run:1:3"), lambda before, after: foreign_weights(before, after, "run", 1))
        runner = GroupRunner(GroupRules(2, 1), source, guard, ledger, numbering, any_samples, Heard())
        runner.update_model_version(3)
        yield Scene(agent, gateway, runner)


async def test_a_group_carries_the_version_that_the_gateway_saw_sampling_it() -> None:
    async with scene(entry("run:1:2", "run:1:3")) as made:
        rollouts = await made.run()
    assert [rollout.version for rollout in rollouts] == [2, 2]
    assert len(made.gateway.questions) == 1


async def test_a_failed_rollout_drops_the_group() -> None:
    async with scene(entry("run:1:3")) as made:
        made.agent.behaviour = lambda row, number: inner_server_died() if number == 2 else good_answer(row)
        assert await made.reason() is DropReason.FAILED


async def test_a_call_past_the_gateway_drops_the_group() -> None:
    async with scene(None) as made:
        assert await made.reason() is DropReason.NO_LEDGER_ENTRY


async def test_an_earlier_attempts_weights_drop_the_group() -> None:
    async with scene(entry("run:0:3")) as made:
        assert await made.reason() is DropReason.FOREIGN_WEIGHTS


async def test_a_pod_that_lost_its_weights_drops_the_group_whatever_the_ledger_says() -> None:
    pods = Servers("default")
    async with scene(entry("run:1:3"), pods) as made:
        assert await made.reason() is DropReason.FOREIGN_WEIGHTS


async def test_a_group_that_took_many_weight_versions_is_used() -> None:
    async with scene(entry("run:1:3")) as made:

        def slow(row: dict[str, Any], number: int) -> Any:
            made.runner.update_model_version(50)
            return good_answer(row)

        made.agent.behaviour = slow
        assert [rollout.version for rollout in await made.run()] == [3, 3]


async def test_calls_that_older_weights_sampled_than_the_gateway_lets_through_are_not_the_groups() -> None:
    async with scene(entry("run:1:1")) as made:
        assert await made.reason() is DropReason.STALE


async def test_pods_that_never_say_what_they_hold_end_the_group_at_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymtrain_trainer.rollouts.guard._ASK_SECONDS", 0.05)
    async with scene(entry("run:1:3"), Servers("run:1:3", hangs=True)) as made:
        assert await made.reason() is DropReason.FAILED
