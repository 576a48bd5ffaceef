"""When parity is checked, and who hears of it."""

import asyncio
from typing import Any

import pytest

from gymtrain_trainer.weights import (
    Completion,
    ParityCheck,
    ParityResult,
    ParityWatch,
    WeightParityError,
    WeightSyncError,
)
from gymtrain_trainer.weights.pods.client import VllmPod


def watch(threshold: float | None = None, **more: Any) -> ParityWatch:
    return ParityWatch(ParityCheck([[1, 2]], threshold), dtype="float32", **more)


@pytest.mark.parametrize(
    ("every", "expected"), [(0, [True, False, False, False, False]), (2, [True, False, True, False, True])]
)
def test_the_first_sync_and_each_nth_after_it_are_checked(every: int, expected: list[bool]) -> None:
    found = watch(every_syncs=every)
    assert [found.due() for _ in range(5)] == expected


async def ask(cluster: Any, found: ParityWatch, *addresses: str) -> None:
    loop = asyncio.get_running_loop()
    urls = [f"http://{address}:{cluster.settings.pods_port}" for address in addresses or ("127.0.0.1",)]
    await asyncio.to_thread(
        found.ask,
        {url: cluster.fleet.client(VllmPod(url)) for url in urls},
        "policy",
        lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(),
        5,
    )


async def run(cluster: Any, found: ParityWatch, shift: float, *addresses: str) -> float:
    """A whole check, with a trainer whose numbers are off by `shift`."""
    await ask(cluster, found, *addresses)
    return found.compare([[-1.0 + shift] * len(one.tokens) for one in found.to_compare])


async def test_the_difference_goes_to_whoever_listens(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    results: list[ParityResult] = []
    assert await run(cluster, watch(0.1, on_result=results.append), 0.001) == pytest.approx(0.001)
    assert (results[0].pods, results[0].threshold, results[0].alarming) == (1, 0.1, False)


async def test_above_half_of_what_is_allowed_it_is_alarming(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    results: list[ParityResult] = []
    await run(cluster, watch(0.1, on_result=results.append), 0.06)
    assert results[0].alarming


async def test_above_what_is_allowed_the_run_ends(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    with pytest.raises(WeightParityError, match=r"allowed 0\.1"):
        await run(cluster, watch(0.1), 0.2)


async def test_what_pods_sampled_alike_is_computed_once_and_each_pod_is_judged(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    (await cluster.start_pod("127.0.0.2")).logprob = -1.5
    found = watch(0.1)
    with pytest.raises(WeightParityError, match=r"127\.0\.0\.2"):
        await run(cluster, found, 0.0, "127.0.0.1", "127.0.0.2")
    await ask(cluster, found, "127.0.0.1", "127.0.0.2")
    assert found.to_compare == [Completion((1, 2), (7,) * 16)]


async def test_what_was_compared_is_not_compared_again(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    found = watch()
    await run(cluster, found, 0.0)
    assert found.to_compare == []


async def test_a_pod_that_is_gone_is_no_error_and_the_check_is_due_again(cluster: Any) -> None:
    found = watch()
    assert found.due()
    await ask(cluster, found, "127.0.0.9")
    assert found.to_compare == []
    await cluster.start_pod("127.0.0.1")
    assert found.due()
    assert await run(cluster, found, 0.0) == 0.0
    assert not found.due()


async def test_a_pod_whose_engine_died_during_the_check_is_no_error(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.engine_died = True
    found = watch()
    await ask(cluster, found)
    assert found.to_compare == []


async def test_a_pod_that_refuses_the_check_is_an_error(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.refuses_completions = True
    with pytest.raises(WeightSyncError, match=r"parity check .* HTTP 400"):
        await ask(cluster, watch())


async def test_pods_that_never_survive_the_check_are_an_error(cluster: Any) -> None:
    found = watch()
    await ask(cluster, found, "127.0.0.9")
    await ask(cluster, found, "127.0.0.9")
    with pytest.raises(WeightSyncError, match="3 times in a row"):
        await ask(cluster, found, "127.0.0.9")
