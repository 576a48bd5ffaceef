"""The transport as TRL drives it: from a thread without an event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gymtrain_trainer.weights import (  # noqa: E402
    HTTPFull,
    ParityCheck,
    ParityWatch,
    SyncEvent,
    WeightParityError,
    WeightSyncError,
)

pytestmark = pytest.mark.torch


def weights() -> Any:
    return iter([("a.weight", torch.ones(2, 2))])


async def on_main_thread[T](work: Callable[[], T]) -> T:
    return await asyncio.wait_for(asyncio.to_thread(work), 20)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the watcher has no event to wait for
            await asyncio.sleep(0.01)


async def test_a_sync_brings_all_pods_to_the_next_version(cluster: Any) -> None:
    pods = [await cluster.start_pod(f"127.0.0.{number}") for number in (1, 2)]
    transfer = HTTPFull(cluster.settings, cluster.store)

    def trl() -> None:
        transfer.init_weight_transfer()
        for _ in range(2):
            transfer.pause()
            transfer.send_weights(weights())
            transfer.resume()

    await on_main_thread(trl)
    assert [pod.version for pod in pods] == ["demo:1:2"] * 2
    assert transfer.current_version == "demo:1:2"
    assert await transfer.pod_versions() == {
        f"http://127.0.0.{number}:{cluster.settings.pods_port}": "demo:1:2" for number in (1, 2)
    }
    await on_main_thread(transfer.destroy)


async def test_the_watcher_brings_a_restarted_pod_back(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    events: list[SyncEvent] = []
    transfer = HTTPFull(cluster.settings, cluster.store, observer=events.append)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    pod.version = "default"
    await until(lambda: pod.version == "demo:1:1" and transfer.stats.repairs == 1)
    assert [event.kind for event in events] == ["sync", "repair"]
    await on_main_thread(transfer.destroy)


async def test_a_new_pod_is_brought_to_the_current_version(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    transfer = HTTPFull(cluster.settings, cluster.store)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    added = await cluster.start_pod("127.0.0.2")
    await until(lambda: added.version == "demo:1:1")
    await on_main_thread(transfer.destroy)


async def test_after_a_failed_sync_the_next_one_can_succeed(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    transfer = HTTPFull(cluster.settings, cluster.store)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    pod.fail_updates = 3
    with pytest.raises(WeightSyncError):
        await on_main_thread(lambda: transfer.send_weights(weights()))
    await on_main_thread(lambda: transfer.send_weights(weights()))
    assert pod.version == "demo:1:3"  # a number is never used twice: some pod may hold the failed one
    await on_main_thread(transfer.destroy)


async def test_pods_that_took_a_sync_that_failed_elsewhere_are_brought_back(cluster: Any) -> None:
    good, bad = [await cluster.start_pod(f"127.0.0.{number}") for number in (1, 2)]
    transfer = HTTPFull(cluster.settings, cluster.store)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    bad.fail_updates = 3
    with pytest.raises(WeightSyncError):
        await on_main_thread(lambda: transfer.send_weights(weights()))
    await until(lambda: good.loaded == ["demo:1:1", "demo:1:2", "demo:1:1"])
    await on_main_thread(transfer.destroy)


async def test_a_failed_sync_leaves_the_version_as_it_was(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    transfer = HTTPFull(cluster.settings, cluster.store)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    pod.fail_updates = 99
    with pytest.raises(WeightSyncError):
        await on_main_thread(lambda: transfer.send_weights(weights()))
    assert transfer.current_version == "demo:1:1"
    assert not pod.paused
    await on_main_thread(transfer.destroy)


@pytest.mark.parametrize(("logprob", "agrees"), [(-1.0, True), (-1.5, False)])
async def test_parity_is_asked_after_the_first_sync(cluster: Any, logprob: float, agrees: bool) -> None:
    (await cluster.start_pod("127.0.0.1")).logprob = logprob
    check = ParityCheck(lambda _, completion: [-1.0] * len(completion), [[1, 2]])
    transfer = HTTPFull(cluster.settings, cluster.store, dtype="float32", parity=ParityWatch(check, dtype="float32"))
    await on_main_thread(transfer.init_weight_transfer)
    if agrees:
        await on_main_thread(lambda: transfer.send_weights(weights()))
        assert transfer.stats.last_parity == 0.0
    else:
        with pytest.raises(WeightParityError):
            await on_main_thread(lambda: transfer.send_weights(weights()))
    await on_main_thread(transfer.destroy)


async def test_the_end_frees_the_disk(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    transfer = HTTPFull(cluster.settings, cluster.store)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    await on_main_thread(transfer.destroy)
    assert not (cluster.folder / "staged").exists()
