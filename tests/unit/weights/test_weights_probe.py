"""Asking vLLM what it offers."""

import asyncio
from typing import Any

import pytest

from gymtrain_api.transports import choose
from gymtrain_trainer.weights import NoServersError, VllmPod, probe_servers, wait_for_servers


def pod_of(cluster: Any, address: str) -> VllmPod:
    return VllmPod(f"http://{address}:{cluster.settings.pods_port}")


async def test_a_server_with_the_plugin_is_chosen_for(cluster: Any) -> None:
    await cluster.start_pod("127.0.0.1")
    (report,) = await probe_servers([pod_of(cluster, "127.0.0.1")])
    assert choose("Auto", [report.offer]).transport == "HTTPFull"
    assert (report.dtype, report.max_model_len, report.release) == ("float32", 1024, "0.32.0")


async def test_routes_without_the_setting_behind_them_are_no_offer(cluster: Any) -> None:
    pod = await cluster.start_pod("127.0.0.1")
    pod.backend = None
    (report,) = await probe_servers([pod_of(cluster, "127.0.0.1")])
    choice = choose("Auto", [report.offer])
    assert choice.transport is None
    assert "install the gymtrain plugin" in choice.reason


async def test_waiting_ends_when_a_pod_comes_up(cluster: Any) -> None:
    seen: list[str] = []
    wait = asyncio.create_task(wait_for_servers(cluster.settings, deadline_seconds=10, on_wait=seen.append))
    await asyncio.sleep(0.2)
    await cluster.start_pod("127.0.0.1")
    assert await wait == [pod_of(cluster, "127.0.0.1")]
    assert "has no address yet" in seen[0]


async def test_waiting_too_long_says_what_each_pod_answered(cluster: Any) -> None:
    cluster.addresses.append("127.0.0.9")
    with pytest.raises(NoServersError, match=r"0 of 1 vLLM pods came up .*127\.0\.0\.9"):
        await wait_for_servers(cluster.settings, deadline_seconds=0)


async def test_waiting_ends_when_fewer_pods_are_wanted(cluster: Any) -> None:
    """As when somebody scales vLLM down before all of it was up."""
    await cluster.start_pod("127.0.0.1")
    wanted, waits = iter([3, 3, 1]), list[str]()
    found = await wait_for_servers(
        cluster.settings, deadline_seconds=10, count=lambda: next(wanted), on_wait=waits.append
    )
    assert found == [pod_of(cluster, "127.0.0.1")]
    assert [text[:20] for text in waits] == ["vLLM: 1 of 3 pods up"] * 2
