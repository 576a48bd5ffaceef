"""The transport as TRL drives it: from a thread without an event loop."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gymtrain_trainer.weights import (  # noqa: E402
    HTTPFull,
    ParityCheck,
    ParityWatch,
    StagingError,
    SyncEvent,
    WeightParityError,
    WeightSync,
    WeightSyncError,
)
from tests.unit.weights.weights_waits import on_main_thread, until  # noqa: E402

pytestmark = pytest.mark.torch


def over(
    cluster: Any, *, parity: ParityWatch | None = None, observer: Callable[[SyncEvent], None] | None = None, **more: Any
) -> WeightSync:
    return WeightSync.over(cluster.settings, HTTPFull(cluster.store, **more), parity=parity, observer=observer)


def weights() -> Any:
    return iter([("a.weight", torch.ones(2, 2))])


async def test_a_sync_brings_all_pods_to_the_next_version(cluster: Any) -> None:
    pods = [await cluster.start_pod(f"127.0.0.{number}") for number in (1, 2)]
    transfer = over(cluster)

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
    transfer = over(cluster, observer=events.append)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    pod.version = "default"
    await until(lambda: pod.version == "demo:1:1" and transfer.stats.repairs == 1)
    assert [event.kind for event in events] == ["sync", "repair"]
    await on_main_thread(transfer.destroy)


async def test_a_new_pod_is_brought_to_the_current_version(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    transfer = over(cluster)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    added = await cluster.start_pod("127.0.0.2")
    await until(lambda: added.version == "demo:1:1")
    await on_main_thread(transfer.destroy)


async def test_after_a_failed_sync_the_next_one_can_succeed(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    transfer = over(cluster)
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
    transfer = over(cluster)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    bad.fail_updates = 3
    with pytest.raises(WeightSyncError):
        await on_main_thread(lambda: transfer.send_weights(weights()))
    await until(lambda: good.loaded == ["demo:1:1", "demo:1:2", "demo:1:1"])
    await on_main_thread(transfer.destroy)


async def test_a_failed_sync_leaves_the_version_as_it_was(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    transfer = over(cluster)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    pod.fail_updates = 99
    with pytest.raises(WeightSyncError):
        await on_main_thread(lambda: transfer.send_weights(weights()))
    assert transfer.current_version == "demo:1:1"
    assert not pod.paused
    await on_main_thread(transfer.destroy)


@pytest.mark.parametrize(("logprob", "agrees"), [(-1.0, True), (-1.5, False)])
async def test_parity_is_checked_after_the_first_sync(cluster: Any, logprob: float, agrees: bool) -> None:
    (await cluster.start_pod("127.0.0.1")).logprob = logprob
    transfer = over(cluster, dtype="float32", parity=ParityWatch(ParityCheck([[1, 2]]), dtype="float32"))
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    ours = [[-1.0] * len(one.tokens) for one in transfer.to_compare()]
    if agrees:
        transfer.compare(ours)
        assert transfer.stats.last_parity == 0.0
    else:
        with pytest.raises(WeightParityError):
            transfer.compare(ours)
    await on_main_thread(transfer.destroy)


def slow_weights(pod: Any, version: str) -> Iterator[tuple[str, Any]]:
    """The first tensor is a file of its own; the second one comes once the pod fetches the version."""
    yield "a.weight", torch.ones(3 << 22)
    deadline = time.monotonic() + 10
    while version not in pod.begun and time.monotonic() < deadline:
        time.sleep(0.001)
    yield "b.weight", torch.ones(2, 2)


async def test_pods_fetch_and_generate_while_the_trainer_still_writes(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    transfer = over(cluster)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    await on_main_thread(lambda: transfer.send_weights(slow_weights(pod, "demo:1:2")))
    assert pod.begun == ["demo:1:2"]  # the first version is announced when it is written
    assert (pod.begun_while_paused, pod.loaded_while_paused) == ([False], [True, True])
    assert pod.version == "demo:1:2"
    await on_main_thread(transfer.destroy)


async def test_a_pod_that_cannot_begin_gets_the_version_when_it_is_written(cluster: Any) -> None:
    good, stuck = [await cluster.start_pod(f"127.0.0.{number}") for number in (1, 2)]
    transfer = over(cluster)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    update = stuck.do_update_weights

    async def refuse(body: dict[str, Any]) -> tuple[int, Any]:
        found: tuple[int, Any] = await update(body) if body["update_info"]["step"] == "load" else (500, {})
        return found

    stuck.do_update_weights = refuse
    await on_main_thread(lambda: transfer.send_weights(slow_weights(good, "demo:1:2")))
    assert [pod.version for pod in (good, stuck)] == ["demo:1:2"] * 2
    await on_main_thread(transfer.destroy)


async def test_a_version_that_cannot_be_written_is_withdrawn_and_the_pods_go_on(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    transfer = over(cluster)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("gymtrain_trainer.weights.store.safetensors_files.os.pwrite", full)
        with pytest.raises(StagingError, match="No space left"):
            await on_main_thread(lambda: transfer.send_weights(weights()))
    assert (pod.version, pod.paused, transfer.current_version) == ("demo:1:1", False, "demo:1:1")
    await on_main_thread(lambda: transfer.send_weights(weights()))
    assert pod.version == "demo:1:3"
    await on_main_thread(transfer.destroy)


class SlowLoad:
    """Holds back a pod's loading."""

    def __init__(self, pod: Any) -> None:
        self.go_on = asyncio.Event()
        self._update = pod.do_update_weights
        pod.do_update_weights = self

    async def __call__(self, body: dict[str, Any]) -> tuple[int, Any]:
        if body["update_info"]["step"] == "load":
            await self.go_on.wait()
        found: tuple[int, Any] = await self._update(body)
        return found


async def test_the_trainer_goes_on_while_pods_load_where_rollouts_may_be_older(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    transfer = over(cluster, max_staleness=1)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    assert pod.version == "demo:1:1"  # the first one is waited for
    slow = SlowLoad(pod)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    assert pod.version == "demo:1:1"
    assert transfer.current_version == "demo:1:2"
    assert transfer.held().version == "demo:1:1"  # until it is on the pods
    slow.go_on.set()
    await until(lambda: transfer.held().version == "demo:1:2")
    assert pod.version == "demo:1:2"
    assert transfer.stats.syncs == 2
    await on_main_thread(transfer.destroy)


async def test_the_next_sync_waits_for_the_one_before(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    transfer = over(cluster, max_staleness=1)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    slow = SlowLoad(pod)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    third = asyncio.create_task(on_main_thread(lambda: transfer.send_weights(weights())))
    await until(lambda: pod.paused)
    assert transfer.current_version == "demo:1:2"
    slow.go_on.set()
    await third
    await until(lambda: pod.version == "demo:1:3")
    assert pod.loaded == ["demo:1:1", "demo:1:2", "demo:1:3"]
    await on_main_thread(transfer.destroy)


@pytest.mark.parametrize("idle", [False, True])
async def test_a_sync_that_fails_later_ends_the_next_one_or_the_wait_for_rollouts(cluster: Any, idle: bool) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    transfer = over(cluster, max_staleness=1)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    pod.fail_updates = 3
    await on_main_thread(lambda: transfer.send_weights(weights()))
    if idle:
        await until(lambda: transfer.wants_resend)
    with pytest.raises(WeightSyncError, match="something broke"):
        await on_main_thread(transfer.resend if idle else lambda: transfer.send_weights(weights()))
    assert not transfer.wants_resend
    assert transfer.current_version == "demo:1:1"
    await on_main_thread(transfer.destroy)


async def test_a_sync_whose_parity_is_checked_is_waited_for(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    parity = ParityWatch(ParityCheck([[1, 2]]), every_syncs=1, dtype="float32")
    transfer = over(cluster, max_staleness=1, parity=parity)
    await on_main_thread(transfer.init_weight_transfer)
    for _ in range(2):
        await on_main_thread(lambda: transfer.send_weights(weights()))
        transfer.compare([[-1.0] * len(one.tokens) for one in transfer.to_compare()])
    assert pod.version == "demo:1:2"
    await on_main_thread(transfer.destroy)


async def test_the_end_does_not_wait_for_a_pod_that_loads(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymtrain_trainer.weights.sync._LAST_SECONDS", 1.0)
    pod = await cluster.start_pod("127.0.0.1")
    transfer = over(cluster, max_staleness=1)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    slow = SlowLoad(pod)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    await until(lambda: pod.paused)
    await on_main_thread(transfer.destroy)
    assert not pod.paused
    slow.go_on.set()


async def test_the_end_frees_the_disk(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    transfer = over(cluster)
    await on_main_thread(transfer.init_weight_transfer)
    await on_main_thread(lambda: transfer.send_weights(weights()))
    await on_main_thread(transfer.destroy)
    assert not (cluster.folder / "staged").exists()
