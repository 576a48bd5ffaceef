"""One version into one pod."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from gymtrain_api.manifest import WeightPart
from gymtrain_trainer.weights import HTTPFull
from gymtrain_trainer.weights.errors import PodRefusedError, PodUnreachableError
from gymtrain_trainer.weights.pods.client import PublishedVersion, VllmPod
from gymtrain_vllm.download import Download
from gymtrain_vllm.fetch import BackgroundFetch

ADDRESS = "127.0.0.1"


def client_of(cluster: Any) -> Any:
    return cluster.fleet.client(VllmPod(f"http://{ADDRESS}:{cluster.settings.pods_port}"))


async def test_the_pod_holds_the_bytes_that_were_staged(cluster: Any, read_file: Callable[[Path], bytes]) -> None:
    pod = await cluster.start_pod(ADDRESS)
    await client_of(cluster).pull(cluster.stage(1, b"new weights"), 5.0)
    assert read_file(pod.folder) == b"new weights"
    assert pod.version == "demo:1:1"


async def test_the_pod_is_paused_while_it_loads_and_only_then(cluster: Any) -> None:
    pod = await cluster.start_pod(ADDRESS)
    await client_of(cluster).pull(cluster.stage(1), 5.0)
    assert pod.loaded_while_paused == [True]
    assert not pod.paused


async def test_caches_of_the_old_weights_are_forgotten_before_the_pod_goes_on(cluster: Any) -> None:
    pod = await cluster.start_pod(ADDRESS)
    await client_of(cluster).pull(cluster.stage(1), 5.0)
    assert pod.calls.index("/reset_prefix_cache") < pod.calls.index("/resume")


async def test_a_failed_push_leaves_the_pod_running(cluster: Any) -> None:
    pod = await cluster.start_pod(ADDRESS)
    pod.fail_updates = 1
    with pytest.raises(PodRefusedError, match="something broke"):
        await client_of(cluster).pull(cluster.stage(1), 5.0)
    assert not pod.paused


async def test_a_cancelled_push_leaves_the_pod_running(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = await cluster.start_pod(ADDRESS)
    loading = asyncio.Event()

    async def never(_: dict[str, Any]) -> tuple[int, Any]:
        loading.set()
        await asyncio.sleep(60)
        return 200, {}

    monkeypatch.setattr(pod, "do_update_weights", never)
    task = asyncio.create_task(client_of(cluster).pull(cluster.stage(1), 5.0))
    await asyncio.wait_for(loading.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not pod.paused


async def test_an_update_left_open_by_a_killed_trainer_is_closed_first(cluster: Any) -> None:
    pod = await cluster.start_pod(ADDRESS)
    pod.active = True
    await client_of(cluster).pull(cluster.stage(1), 5.0)
    assert pod.loaded == ["demo:1:1"]


async def test_damaged_weights_are_refused_and_the_label_stays(cluster: Any) -> None:
    pod = await cluster.start_pod(ADDRESS)
    version = cluster.stage(1)
    cluster.store.find("1", "00000.safetensors").write_bytes(b"damaged")
    with pytest.raises(PodRefusedError, match="blake3"):
        await client_of(cluster).pull(version, 2.0)
    assert pod.version == "default"


async def test_a_pod_that_began_fetches_while_it_generates_and_loads_while_it_is_paused(cluster: Any) -> None:
    pod = await cluster.start_pod(ADDRESS)
    version, carrier = cluster.stage(1), HTTPFull(cluster.store)
    await carrier.begin(client_of(cluster), version, 600.0)
    assert not pod.paused
    await carrier.push(client_of(cluster), version, 600.0)
    assert (pod.begun_while_paused, pod.loaded_while_paused) == ([False], [True])
    assert pod.calls.count("/start_weight_update") == 1
    assert pod.version == "demo:1:1"


async def test_a_pod_that_restarted_since_it_began_is_asked_for_all_at_the_next_try(cluster: Any) -> None:
    pod = await cluster.start_pod(ADDRESS)
    version, carrier = cluster.stage(1), HTTPFull(cluster.store)
    await carrier.begin(client_of(cluster), version, 600.0)
    pod.active, pod.ahead = False, BackgroundFetch(pod.folder)
    with pytest.raises(PodRefusedError):
        await carrier.push(client_of(cluster), version, 600.0)
    await carrier.push(client_of(cluster), version, 600.0)
    assert pod.loaded == ["demo:1:1"]


async def test_what_was_begun_of_another_version_does_not_count(cluster: Any) -> None:
    pod = await cluster.start_pod(ADDRESS)
    carrier = HTTPFull(cluster.store)
    first, second = cluster.stage(1), cluster.stage(2)
    await carrier.begin(client_of(cluster), second, 5.0)
    await carrier.push(client_of(cluster), first, 5.0)
    assert pod.loaded == ["demo:1:1"]


async def test_a_pod_that_did_not_answer_in_time_loses_its_label(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold the new weights by then, and would serve them under the old label."""
    pod = await cluster.start_pod(ADDRESS)
    await client_of(cluster).pull(cluster.stage(1), 5.0)

    async def slow(_: dict[str, Any]) -> tuple[int, Any]:
        await asyncio.sleep(1)
        return 200, {}

    monkeypatch.setattr(pod, "do_update_weights", slow)
    with pytest.raises(PodUnreachableError):
        await client_of(cluster).pull(cluster.stage(2), 0.1)
    assert (pod.version, pod.paused) == ("default", False)


class HeldBack:
    """Holds back the parts that a pod fetches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = Event()
        part_of = Download.part

        def part(download: Download, part: WeightPart, file: int, memory: memoryview | None) -> None:
            assert self.go_on.wait(5)
            part_of(download, part, file, memory)

        monkeypatch.setattr(Download, "part", part)


async def begun(cluster: Any) -> tuple[HTTPFull, PublishedVersion]:
    version, carrier = cluster.stage(1), HTTPFull(cluster.store)
    await carrier.begin(client_of(cluster), version, 600.0)
    return carrier, version


async def test_a_pod_goes_on_until_it_has_all_that_it_is_to_load(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pod, held = await cluster.start_pod(ADDRESS), HeldBack(monkeypatch)
    carrier, version = await begun(cluster)
    push = asyncio.create_task(carrier.push(client_of(cluster), version, 600.0))
    await asyncio.sleep(0.1)
    assert "/pause" not in pod.calls
    held.go_on.set()
    await push
    assert pod.loaded_while_paused == [True]


async def test_a_server_of_several_pods_goes_on_until_each_has_all(cluster: Any) -> None:
    leader, version = await cluster.start_pod(ADDRESS), cluster.stage(1)
    carrier = HTTPFull(cluster.store, nodes=2)
    await carrier.begin(client_of(cluster), version, 600.0)
    push = asyncio.create_task(carrier.push(client_of(cluster), version, 600.0))
    await asyncio.sleep(0.3)
    assert "/pause" not in leader.calls
    (fetch,) = cluster.store.fetches._open.values()
    fetch.end("its worker's address")
    await push
    assert leader.loaded_while_paused == [True]


async def test_a_pod_that_is_not_heard_of_is_told_to_load_all_the_same(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymtrain_trainer.weights.transports.http_full._LOOK_SECONDS", 0.01)
    monkeypatch.setattr("gymtrain_trainer.weights.transports.http_full._SILENT_SECONDS", 0.05)
    monkeypatch.setattr(Download, "tell_end", lambda _: None)
    pod = await cluster.start_pod(ADDRESS)
    carrier, version = await begun(cluster)
    async with asyncio.timeout(60):
        await carrier.push(client_of(cluster), version, 600.0)
    assert pod.loaded == ["demo:1:1"]


async def test_a_pod_that_ends_while_it_fetches_is_not_waited_for(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymtrain_trainer.weights.transports.http_full._LOOK_SECONDS", 0.01)
    pod, held = await cluster.start_pod(ADDRESS), HeldBack(monkeypatch)
    carrier, version = await begun(cluster)
    pod.engine_died = True
    async with asyncio.timeout(60):
        with pytest.raises(PodUnreachableError):
            await carrier.push(client_of(cluster), version, 600.0)
    held.go_on.set()
