"""The transport of adapters, without tensors: TRL saves them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymtrain_trainer.weights import LoRAFilesystem, SyncEvent, WeightSync, WeightSyncError
from tests.unit.weights.weights_waits import until


@pytest.fixture
def save(tmp_path: Path) -> Callable[[int], Path]:
    """An adapter as TRL leaves it."""

    def saved(number: int) -> Path:
        folder = tmp_path / "adapters" / f"trl-policy-v{number}"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_bytes(b"tensors")
        return folder

    return saved


@pytest.fixture
async def transport(cluster: Any, tmp_path: Path) -> Any:
    events: list[SyncEvent] = []
    adapters = LoRAFilesystem(tmp_path / "adapters", max_staleness=1)
    found = WeightSync.over(cluster.settings, adapters, observer=events.append)
    found.init_weight_transfer()
    yield found
    await asyncio.to_thread(found.destroy)


async def send(transport: WeightSync, folder: Path) -> None:
    adapters = transport.settle()
    assert isinstance(adapters, LoRAFilesystem)
    adapters.use_saved(folder)
    await asyncio.to_thread(transport.send_weights, iter(()))


async def test_every_pod_loads_the_adapter_under_the_versions_label(cluster: Any, transport: Any, save: Any) -> None:
    pods = [await cluster.start_pod(f"127.0.0.{number}") for number in (1, 2)]
    folder = save(1)
    await send(transport, folder)
    assert [pod.adapters for pod in pods] == [{"demo:1:1": str(folder)}] * 2
    assert transport.current_version == "demo:1:1"
    assert set((await transport.pod_versions()).values()) == {"demo:1:1"}
    assert set(transport.held().pods.values()) == {"demo:1:1"}


async def test_generation_is_never_paused(cluster: Any, transport: Any, save: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    await send(transport, save(1))
    assert "/pause" not in pod.calls


async def test_adapters_that_no_request_names_any_more_are_forgotten_and_deleted(
    cluster: Any, transport: Any, save: Any
) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    folders = [save(number) for number in range(1, 5)]
    for folder in folders:
        await send(transport, folder)
    assert list(pod.adapters) == ["demo:1:3", "demo:1:4"]
    # The files outlive the adapter by one version: vLLM may read them late.
    assert [folder.exists() for folder in folders] == [False, True, True, True]


async def test_adapters_of_an_earlier_attempt_are_forgotten(cluster: Any, transport: Any, save: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.adapters = {"demo:0:9": "/gone", "other:0:1": "/others"}
    await send(transport, save(1))
    assert list(pod.adapters) == ["other:0:1", "demo:1:1"]


async def test_a_restarted_pod_gets_the_current_adapter_again(cluster: Any, transport: Any, save: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    await send(transport, save(1))
    pod.adapters.clear()
    await until(lambda: "demo:1:1" in pod.adapters and transport.stats.repairs == 1)


async def test_an_adapter_that_is_there_already_is_no_error(cluster: Any, transport: Any, save: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.adapters = {"demo:1:1": "/same"}
    await send(transport, save(1))
    assert list(pod.adapters) == ["demo:1:1"]


async def test_a_failed_sync_uses_up_its_number(cluster: Any, transport: Any, save: Any) -> None:
    good, bad = [await cluster.start_pod(f"127.0.0.{number}") for number in (1, 2)]
    await send(transport, save(1))
    bad.fail_updates = 3
    with pytest.raises(WeightSyncError):
        await send(transport, save(2))
    assert transport.current_version == "demo:1:1"
    await send(transport, save(3))
    assert "demo:1:3" in good.adapters
    assert "demo:1:3" in bad.adapters
