"""What becomes of a group whose rollouts fail."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import pytest

from gymtrain_api.ledger import token_digest
from gymtrain_api.spec import OnFailure
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import (
    AgentError,
    DropReason,
    FailureKind,
    GroupDroppedError,
    RolloutError,
    RowRefusedError,
)
from gymtrain_trainer.framework import SampleGroup
from gymtrain_trainer.rollouts.answer import Answer, Turn, UnscoredError
from gymtrain_trainer.rollouts.group import Group, GroupRules, GroupRunner, Lost
from gymtrain_trainer.rollouts.guard import WeightGuard
from gymtrain_trainer.rollouts.ledger import Ledger
from gymtrain_trainer.rollouts.origins import Rollout
from gymtrain_trainer.rollouts.samples import to_samples
from gymtrain_trainer.weights import SyncNumbers
from tests.unit.trainer.trainer_data import question
from tests.unit.trainer.trainer_gateway import Gateway, dns, entry, serving
from tests.unit.trainer.trainer_groups import Heard, Servers

INFRASTRUCTURE, TIMEOUT, ENVIRONMENT = FailureKind.INFRASTRUCTURE, FailureKind.TIMEOUT, FailureKind.ENVIRONMENT
ZERO = OnFailure(timeout="Zero", environment="Zero")
TASK = Task(4, "adder", "http://unused", question(1))
HANGS = asyncio.CancelledError()  # a rollout that ends only if it is cancelled


def answer(reward: float, token: int = 3) -> Answer:
    return Answer([Turn.of([1, 2], [token], [-0.5])], reward, "", truncated=False)


def unscored(token: int = 3) -> Answer:
    return Answer([Turn.of([1, 2], [token], [-0.5])], 0.0, "", truncated=False, scored=False)


def failed(kind: FailureKind, *, tokens: bool = False) -> RolloutError:
    return UnscoredError("why", kind, unscored()) if tokens else AgentError("why", kind)


class Script:
    """A source whose rollouts end as the script says."""

    def __init__(self, ends: Sequence[Answer | BaseException]) -> None:
        self.ends = list(ends)
        self.cancelled = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    async def run(self, task: Task) -> Answer:
        end = self.ends.pop(0)
        await asyncio.sleep(0)
        if end is HANGS:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        if isinstance(end, BaseException):
            raise end
        return end


class Scene:
    """A group with these ends."""

    def __init__(
        self, *ends: Answer | BaseException, policy: OnFailure | None = None, ledger: Ledger | None = None
    ) -> None:
        self.heard = Heard()
        self.source = Script(ends)
        numbering = SyncNumbers("run", 1)
        numbering.sent("run:1:1")

        def samples(rollouts: Sequence[Rollout], task: Task) -> SampleGroup:
            return to_samples(rollouts, group_id=task.position, agent=task.agent, fork_threshold=0)

        rules = GroupRules(len(ends), 1, on_failure=policy or OnFailure())
        guard = WeightGuard(Servers(), lambda before, after: None)
        self.runner = GroupRunner(rules, self.source, guard, ledger, numbering, samples, self.heard)
        self.runner.update_model_version(1)

    @property
    def lost(self) -> list[Lost]:
        assert self.heard.agents <= {"adder"}
        return self.heard.lost

    async def run(self) -> Group:
        async with asyncio.timeout(60):
            return await self.runner.run(TASK)

    async def samples(self) -> SampleGroup:
        return (await self.run()).samples

    async def dropped(self) -> GroupDroppedError:
        with pytest.raises(GroupDroppedError) as dropped:
            await self.run()
        return dropped.value


def rewards_of_samples(group: SampleGroup) -> list[float]:
    return [group.rewards[sample.rollout] for sample in group.samples]


@pytest.mark.parametrize("kind", list(FailureKind))
async def test_a_group_of_16_that_lost_one_trains_as_15(kind: FailureKind) -> None:
    ends: list[Answer | BaseException] = [answer(float(number % 2)) for number in range(16)]
    ends[3] = failed(kind, tokens=True)
    scene = Scene(*ends)
    group = await scene.samples()
    assert group.rewards == tuple(float(number % 2) for number in range(16) if number != 3)
    assert [sample.rollout for sample in group.samples] == list(range(15))
    assert [sample.reward for sample in group.samples] == rewards_of_samples(group)
    assert scene.lost == [Lost(kind, "why", zeroed=False, position=4)]
    assert scene.runner.running == 0


async def test_a_zero_with_tokens_is_trained_on_with_reward_0() -> None:
    scene = Scene(answer(1.0), failed(TIMEOUT, tokens=True), answer(1.0), policy=ZERO)
    group = await scene.samples()
    assert group.rewards == (1.0, 0.0, 1.0)
    assert [sample.reward for sample in group.samples] == rewards_of_samples(group) == [1.0, 0.0, 1.0]
    assert scene.lost == [Lost(TIMEOUT, "why", zeroed=True, position=4)]


async def test_a_zero_without_tokens_counts_in_mean_and_deviation_alone() -> None:
    scene = Scene(failed(ENVIRONMENT), answer(1.0), answer(1.0), policy=ZERO)
    group = await scene.samples()
    assert sorted(group.rewards) == [0.0, 1.0, 1.0]
    assert group.reward_deviation == pytest.approx(2**0.5 / 3)
    assert rewards_of_samples(group) == [1.0, 1.0]
    assert scene.lost == [Lost(ENVIRONMENT, "why", zeroed=True, position=4)]


async def test_an_infrastructures_failure_is_never_a_reward() -> None:
    scene = Scene(failed(INFRASTRUCTURE, tokens=True), answer(1.0), answer(1.0), policy=ZERO)
    assert (await scene.samples()).rewards == (1.0, 1.0)
    assert scene.lost == [Lost(INFRASTRUCTURE, "why", zeroed=False, position=4)]


async def test_one_rollout_that_is_left_has_nothing_to_be_compared_with() -> None:
    dropped = await Scene(answer(1.0), failed(TIMEOUT), failed(TIMEOUT)).dropped()
    assert (dropped.reason, str(dropped)) == (DropReason.FAILED, "2 of 3 rollouts failed; the last: why")


async def test_zeros_without_tokens_do_not_make_one_rollout_a_group() -> None:
    scene = Scene(answer(1.0), failed(TIMEOUT), failed(TIMEOUT), policy=ZERO)
    assert (await scene.dropped()).reason is DropReason.FAILED
    assert len(scene.lost) == 2


async def test_a_group_of_nothing_but_zeros_is_dropped() -> None:
    scene = Scene(*[failed(ENVIRONMENT, tokens=True) for _ in range(4)], policy=ZERO)
    assert (await scene.dropped()).reason is DropReason.FAILED
    assert len(scene.lost) == 4


async def test_rollouts_that_still_run_end_once_they_can_make_no_group() -> None:
    scene = Scene(failed(TIMEOUT), HANGS, failed(TIMEOUT))
    assert (await scene.dropped()).reason is DropReason.FAILED
    assert (scene.source.cancelled, scene.runner.running) == (1, 0)


async def test_a_failure_lets_the_others_end() -> None:
    assert (await Scene(failed(TIMEOUT), answer(0.0), answer(1.0)).samples()).rewards == (0.0, 1.0)


@pytest.mark.parametrize("policy", [OnFailure(), ZERO])
async def test_a_row_that_is_refused_ends_its_group_at_once(policy: OnFailure) -> None:
    scene = Scene(answer(1.0), answer(0.0), RowRefusedError("422"), HANGS, policy=policy)
    dropped = await scene.dropped()
    assert (dropped.reason, str(dropped)) == (DropReason.FAILED, "422")
    assert (scene.source.cancelled, scene.lost) == (1, [])


async def test_a_cancelled_group_cancels_its_rollouts() -> None:
    scene = Scene(HANGS, HANGS)
    group = asyncio.create_task(scene.run())
    await asyncio.sleep(0.01)
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert (scene.source.cancelled, scene.runner.running) == (2, 0)


async def test_a_rollout_that_vllm_cut_off_is_lost_to_infrastructure_and_its_group_goes_on() -> None:
    known = {token_digest([1, 2], [token]): entry("run:1:1") for token in (3, 4)}
    cut = {token_digest([1, 2], [5]): entry("run:1:1", finish="abort")}
    async with serving(Gateway(known | cut)) as found, Ledger("gateways", find=dns(found)) as ledger:
        scene = Scene(answer(1.0, 3), answer(1.0, 5), answer(0.0, 4), policy=ZERO, ledger=ledger)
        group = await scene.samples()
    assert rewards_of_samples(group) == [1.0, 0.0]
    assert [(lost.kind, lost.zeroed) for lost in scene.lost] == [(INFRASTRUCTURE, False)]
    assert "finish_reason abort" in scene.lost[0].error


async def test_a_zero_whose_answer_vllm_cut_off_leaves_its_group_and_is_counted_once() -> None:
    known = {token_digest([1, 2], [token]): entry("run:1:1") for token in (3, 4)}
    cut = {token_digest([1, 2], [5]): entry("run:1:1", finish="abort")}
    failure = UnscoredError("why", TIMEOUT, unscored(5))
    async with serving(Gateway(known | cut)) as found, Ledger("gateways", find=dns(found)) as ledger:
        scene = Scene(answer(1.0, 3), failure, answer(0.0, 4), policy=ZERO, ledger=ledger)
        group = await scene.samples()
    assert group.rewards == (1.0, 0.0)
    assert [lost.kind for lost in scene.lost] == [TIMEOUT]


async def _counts_once(chance: random.Random) -> bool:
    """Runs a group of any size, ends and policy; returns whether it could be used."""
    policy = OnFailure(
        infrastructure=chance.choice(["Retry", "DropRollout"]),
        timeout=chance.choice(["Retry", "DropRollout", "Zero"]),
        environment=chance.choice(["Retry", "DropRollout", "Zero"]),
    )
    ends: list[Answer | RolloutError] = [
        answer(chance.random())
        if chance.random() < 0.5
        else failed(chance.choice(list(FailureKind)), tokens=chance.random() < 0.5)
        for _ in range(chance.randint(2, 16))
    ]
    scene = Scene(*ends, policy=policy)
    good = [end.reward for end in ends if isinstance(end, Answer)]
    errors = [end for end in ends if isinstance(end, RolloutError)]
    zeroed = [end for end in errors if getattr(policy, end.kind) == "Zero"]
    tokens = len(good) + sum(isinstance(end, UnscoredError) for end in zeroed)
    if tokens < 2 or not good:
        assert (await scene.dropped()).reason is DropReason.FAILED
        return False
    group = await scene.samples()
    assert Counter(lost.kind for lost in scene.lost) == Counter(end.kind for end in errors)
    assert sorted(group.rewards) == sorted(good + [0.0] * len(zeroed))
    assert sorted(rewards_of_samples(group)) == sorted(good + [0.0] * (tokens - len(good)))
    assert all(sample.reward == group.rewards[sample.rollout] for sample in group.samples)
    return True


async def test_every_rollout_counts_once_or_is_reported_with_its_kind() -> None:
    chance = random.Random(16)
    used = [await _counts_once(chance) for _ in range(300)]
    assert 100 < sum(used) < 300
