"""A step on a pod that breaks by an error that nobody foresaw: the pod is not lost, and the broker doesn't spin."""

import asyncio
import time
from typing import Any

import pytest

from gymtrain_api.sandboxes import SandboxState
from gymtrain_broker.control import controller
from tests.support.fake_pods import FakeCluster
from tests.unit.broker.conftest import Bench, Start

pytestmark = pytest.mark.backend("Pod", "AgentSandbox")

_PAUSE = 0.2


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_BROKEN_PAUSE", _PAUSE)


def _break(bench: Bench, monkeypatch: pytest.MonkeyPatch, of: str, verb: str, times: int) -> list[str]:
    """Has calls of a part break at first; returns those that were made."""
    operations = bench.process.controller._operations
    part = getattr(operations, of)
    real, calls = getattr(part, verb), list[str]()

    async def breaking(*args: Any, **more: Any) -> Any:
        calls.append(verb)
        if len(calls) <= times:
            raise TypeError("not foreseen")
        return await real(*args, **more)

    monkeypatch.setattr(part, verb, breaking)
    return calls


async def test_a_pod_whose_deletion_broke_is_deleted_later(
    start: Start, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await start()
    _, found = await bench.ask()
    calls = _break(bench, monkeypatch, "_backend", "delete", times=2)
    await bench.close(found["id"])
    await bench.until(lambda: not cluster.pods)
    assert len(calls) == 3


async def test_a_deletion_that_always_breaks_is_tried_now_and_then(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await start()
    _, found = await bench.ask()
    calls = _break(bench, monkeypatch, "_backend", "delete", times=1_000_000)
    closing, began = asyncio.create_task(bench.close(found["id"])), time.monotonic()
    await bench.until(lambda: len(calls) >= 3)
    assert time.monotonic() - began >= 2 * _PAUSE, "a pause lies between two tries"
    closing.cancel()


async def test_a_free_pod_whose_lease_broke_serves_its_claim_after_all(
    start: Start, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await start(warmPools=[{"image": "task:1"}])
    await bench.until(bench.free_ready)
    (free,) = cluster.pods
    _break(bench, monkeypatch, "_backend", "patch", times=1)
    _, found = await bench.ask()
    assert (found["state"], found["podName"]) == ("Running", free)


async def test_a_lease_that_always_breaks_ends_the_claim_in_time_and_the_pod_is_free_again(
    start: Start, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await start(warmPools=[{"image": "task:1"}])
    await bench.until(bench.free_ready)
    (free,) = cluster.pods
    _break(bench, monkeypatch, "_backend", "patch", times=1_000_000)
    status, found = await bench.ask(timeoutSeconds=0.5)
    assert (status, found["reason"]) == (504, "Deadline")
    assert "the broker failed: TypeError('not foreseen')" in found["message"]
    await bench.until(lambda: free in bench.free_ready())


async def test_a_pod_whose_making_broke_is_made_after_all(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await start()
    _break(bench, monkeypatch, "_backend", "create", times=1)
    assert (await bench.ask())[0] == 201


async def test_a_pod_ahead_whose_making_breaks_is_not_made_at_once_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await start(lookAhead={"tasks": 1})
    calls = _break(bench, monkeypatch, "_backend", "create", times=1_000_000)
    assert (await bench.call("POST", "/v1/announce", {"tasks": [{"image": "task:1", "task": "a"}]}))[0] == 200
    await bench.until(lambda: calls)
    await asyncio.sleep(0.5)
    assert len(calls) == 1


@pytest.mark.backend("Pod")
async def test_a_pod_whose_reset_broke_is_deleted(
    start: Start, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await start(warmPools=[{"image": "task:1", "reuse": "Restart"}])
    await bench.until(bench.free_ready)
    _, found = await bench.ask()
    _break(bench, monkeypatch, "_daemons", "reset", times=1)
    await bench.close(found["id"])
    await bench.until_state(found["id"], SandboxState.CLOSED)
    await bench.until(lambda: found["podName"] not in cluster.pods)
