"""Asking the gateway pods which weights sampled a call."""

import asyncio
import time

import pytest

from gymtrain_api.ledger import MAX_DIGESTS
from gymtrain_trainer.errors import DropReason, GroupDroppedError
from gymtrain_trainer.rollouts import ledger as ledger_module
from gymtrain_trainer.rollouts.ledger import Ledger
from tests.unit.trainer.trainer_gateway import Gateway, dns, entry, serving


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(ledger_module, "_AGAIN_LIMIT_SECONDS", 0.02)


async def test_a_call_is_found_in_whichever_pods_ledger_it_stands() -> None:
    first, second = Gateway({"a": entry("run:1:3")}), Gateway({"b": entry("run:1:4"), "a": entry("run:1:1")})
    async with serving(first, second) as pods, Ledger("gateways", find=dns(pods)) as ledger:
        found = await ledger.entries(["a", "b"])
    assert {digest: [e.versions for e in entries] for digest, entries in found.items()} == {
        "a": [["run:1:3"], ["run:1:1"]],
        "b": [["run:1:4"]],
    }


async def test_the_end_of_a_call_is_told_by_the_trainers_clock() -> None:
    gateway = Gateway({"a": entry("run:1:3", times={"seconds": 2.0, "queued": 0.5, "sampled": 1.0, "ended": 90.0})})
    gateway.age = 100.0
    async with serving(gateway) as pods, Ledger("gateways", find=dns(pods)) as ledger:
        before = time.monotonic()
        ((found,),) = (await ledger.entries(["a"])).values()
    assert found.times is not None
    assert before - 10.0 <= found.times.ended <= time.monotonic() - 10.0
    assert found.times.queued == 0.5


async def test_a_group_is_one_question_to_each_pod() -> None:
    gateway = Gateway({"a": entry("run:1:3"), "b": entry("run:1:3")})
    async with serving(gateway) as pods, Ledger("gateways", find=dns(pods)) as ledger:
        await ledger.entries(["a", "b", "a"])
    assert [question.digests for question in gateway.questions] == [["a", "b"]]


async def test_a_question_is_never_longer_than_the_gateway_takes() -> None:
    digests = [str(number) for number in range(MAX_DIGESTS + 1)]
    gateway = Gateway(dict.fromkeys(digests, entry("run:1:3")))
    async with serving(gateway) as pods, Ledger("gateways", find=dns(pods)) as ledger:
        assert len(await ledger.entries(digests)) == MAX_DIGESTS + 1
    assert [len(question.digests) for question in gateway.questions] == [MAX_DIGESTS, 1]


async def test_a_call_that_no_pod_knows_drops_the_group_after_a_few_tries() -> None:
    gateway = Gateway({"a": entry("run:1:3")})
    async with serving(gateway) as pods, Ledger("gateways", find=dns(pods)) as ledger:
        with pytest.raises(GroupDroppedError, match="1 of 2 model calls") as dropped:
            await ledger.entries(["a", "b"])
    assert dropped.value.reason is DropReason.NO_LEDGER_ENTRY
    assert len(gateway.questions) == 4


async def test_a_gateway_pod_that_dns_learns_of_late_is_asked_too() -> None:
    late = Gateway({"a": entry("run:1:3")})
    async with serving(Gateway(), late) as pods:
        known = pods[:1]
        async with Ledger("gateways", find=dns(known)) as ledger:
            asking = asyncio.create_task(ledger.entries(["a"]))
            await asyncio.sleep(0.015)
            known.append(pods[1])
            assert (await asking)["a"][0].versions == ["run:1:3"]


@pytest.mark.parametrize("status", [500, 200])
async def test_pods_that_fail_are_asked_longer_and_named(status: int) -> None:
    gateway = Gateway()
    gateway.status = status
    async with serving(gateway) as pods:
        known = pods if status == 500 else ["http://127.0.0.1:9"]
        async with Ledger("gateways", find=dns(known)) as ledger:
            with pytest.raises(GroupDroppedError, match=rf"0 gateway pods answered; {known[0]}"):
                await ledger.entries(["a"])
    assert len(gateway.questions) == (8 if status == 500 else 0)


async def test_a_gateway_without_an_address_is_named() -> None:
    async with Ledger("run-gateway-pods", find=dns([])) as ledger:
        with pytest.raises(GroupDroppedError, match="run-gateway-pods has no address"):
            await ledger.entries(["a"])


@pytest.mark.parametrize(
    ("forgotten", "age", "advice"),
    [
        (7, 5.0, r"no more room for 7 calls .*spec\.gateway\.replicas"),
        (0, 5.0, r"A gateway pod began 5 s ago.*spec\.gateway\.template"),
        (0, 1e6, "Calls that don't go through the gateway are in no ledger"),
        (0, None, "Calls that don't go through the gateway are in no ledger"),
    ],
)
async def test_what_is_missing_is_explained_by_what_the_pods_tell(
    forgotten: int, age: float | None, advice: str
) -> None:
    gateway = Gateway()
    gateway.forgotten, gateway.age = forgotten, age
    async with serving(gateway) as pods, Ledger("gateways", find=dns(pods)) as ledger:
        with pytest.raises(GroupDroppedError, match=advice):
            await ledger.entries(["a"], since=time.monotonic() - 600)
