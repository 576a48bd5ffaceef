"""From what the servers offer to a transport."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gymtrain_trainer.weights import TransportNeeds, TransportRefusedError, WeightSync, choose_transport


def needs(cluster: Any, folder: Path, requested: str = "Auto", **more: Any) -> TransportNeeds:
    return TransportNeeds(requested, cluster.store, folder / "adapters", lambda: iter(()), **more)


@pytest.mark.parametrize(
    ("backend", "max_loras", "run", "expected"),
    [
        ("gymtrain_pull", 0, {}, "HTTPFull"),
        ("nccl", 0, {}, "NCCL"),
        (None, 2, {"lora": {"r": 8}}, "LoRAFilesystem"),
        (None, 0, {"requested": "None"}, "None"),
    ],
)
async def test_the_transport_fits_the_servers(
    cluster: Any, tmp_path: Path, backend: str | None, max_loras: int, run: dict[str, Any], expected: str
) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.backend, pod.max_loras = backend, max_loras
    chosen = await asyncio.to_thread(choose_transport, cluster.settings, needs(cluster, tmp_path, **run))
    assert chosen.transport.name == expected
    assert chosen.reason


async def test_servers_that_offer_nothing_are_refused_for_good(cluster: Any, tmp_path: Path) -> None:
    (await cluster.start_pod("127.0.0.1")).backend = None
    with pytest.raises(TransportRefusedError, match="gymtrain plugin") as refused:
        await asyncio.to_thread(choose_transport, cluster.settings, needs(cluster, tmp_path))
    assert refused.value.exit_code == 78


def late(cluster: Any, folder: Path) -> WeightSync:
    return WeightSync(
        cluster.settings, lambda: choose_transport(cluster.settings, needs(cluster, folder)), store=cluster.store
    )


async def test_a_transport_that_is_not_chosen_yet_holds_nothing(cluster: Any, tmp_path: Path) -> None:
    sync = late(cluster, tmp_path)
    assert (sync.name, sync.current_version, await sync.pod_versions()) == ("", None, {})
    sync.destroy()


async def test_the_choice_is_made_once(cluster: Any, tmp_path: Path) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    sync = late(cluster, tmp_path)
    first = await asyncio.to_thread(sync.settle)
    pod.backend = "nccl"
    assert await asyncio.to_thread(sync.settle) is first
    assert sync.name == first.name
    assert cluster.store.held() == sync.held()
