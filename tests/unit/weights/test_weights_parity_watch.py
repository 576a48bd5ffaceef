"""When parity is checked, and who hears of it."""

import asyncio
from typing import Any

import pytest

from gymtrain_trainer.weights import ParityCheck, ParityResult, ParityWatch, WeightParityError, WeightSyncError
from gymtrain_trainer.weights.pods.client import VllmPod


def watch(shift: float = 0.0, threshold: float | None = None, **more: Any) -> ParityWatch:
    check = ParityCheck(lambda _, completion: [-1.0 + shift] * len(completion), [[1, 2]], threshold)
    return ParityWatch(check, dtype="float32", **more)


@pytest.mark.parametrize(
    ("every", "expected"), [(0, [True, False, False, False, False]), (2, [True, False, True, False, True])]
)
def test_the_first_sync_and_each_nth_after_it_are_checked(every: int, expected: list[bool]) -> None:
    found = watch(every_syncs=every)
    assert [found.due() for _ in range(5)] == expected


async def run(cluster: Any, found: ParityWatch, address: str = "127.0.0.1") -> float | None:
    loop = asyncio.get_running_loop()
    client = cluster.fleet.client(VllmPod(f"http://{address}:{cluster.settings.pods_port}"))
    return await asyncio.to_thread(
        found.run,
        {"pod": client},
        "policy",
        lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(),
        5,
        None,
    )


async def test_the_difference_goes_to_whoever_listens(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    results: list[ParityResult] = []
    assert await run(cluster, watch(0.001, 0.1, on_result=results.append)) == pytest.approx(0.001)
    assert (results[0].pods, results[0].threshold, results[0].alarming) == (1, 0.1, False)


async def test_above_half_of_what_is_allowed_it_is_alarming(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    results: list[ParityResult] = []
    await run(cluster, watch(0.06, 0.1, on_result=results.append))
    assert results[0].alarming


async def test_above_what_is_allowed_the_run_ends(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    with pytest.raises(WeightParityError, match=r"allowed 0\.1"):
        await run(cluster, watch(0.2, 0.1))


async def test_a_pod_that_is_gone_is_no_error_and_the_check_is_due_again(cluster: Any) -> None:
    found = watch()
    assert found.due()
    assert await run(cluster, found, "127.0.0.9") is None
    await cluster.start_pod("127.0.0.1")
    assert found.due()
    assert await run(cluster, found) == 0.0
    assert not found.due()


async def test_a_pod_whose_engine_died_during_the_check_is_no_error(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.engine_died = True
    assert await run(cluster, watch()) is None


async def test_a_pod_that_refuses_the_check_is_an_error(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.refuses_completions = True
    with pytest.raises(WeightSyncError, match=r"parity check .* HTTP 400"):
        await run(cluster, watch())


async def test_pods_that_never_survive_the_check_are_an_error(cluster: Any) -> None:
    found = watch()
    assert await run(cluster, found, "127.0.0.9") is None
    assert await run(cluster, found, "127.0.0.9") is None
    with pytest.raises(WeightSyncError, match="3 times in a row"):
        await run(cluster, found, "127.0.0.9")
