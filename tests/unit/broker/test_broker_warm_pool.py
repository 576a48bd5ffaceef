"""Sandboxes that are there before they are asked for."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from gymtrain_api import labels
from gymtrain_api.sandboxes import SandboxState
from tests.support.fake_pods import FakeCluster
from tests.unit.broker.conftest import RHYTHM, Bench, Start

pytestmark = pytest.mark.backend("Pod", "AgentSandbox")
REUSED = [{"image": "task:1", "replicas": 1, "reuse": "Restart"}]


def _images(cluster: FakeCluster) -> Counter[str]:
    return Counter(pod["spec"]["containers"][0]["image"] for pod in cluster.pods.values())


async def _announce(bench: Bench, *images: str) -> Any:
    tasks = [{"image": image, "task": image} for image in images]
    status, answer = await bench.call("POST", "/v1/announce", {"tasks": tasks})
    assert status == 200
    return answer


async def test_pools_are_filled_and_refilled(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=[{"image": "a:1", "replicas": 2}, {"image": "b:1", "replicas": 1}])
    await bench.until(lambda: len(bench.free_ready()) == 3)
    assert _images(cluster) == {"a:1": 2, "b:1": 1}
    await bench.ask("a:1")
    await bench.until(lambda: len(bench.free_ready()) == 3)
    assert _images(cluster) == {"a:1": 3, "b:1": 1}


async def test_a_pool_follows_what_its_requests_ask_for(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=[{"image": "a:1"}])
    resources = {"memoryMiB": 8192}  # more than the default
    _, first = await bench.ask("a:1", resources=resources)
    assert not first["warm"]
    limits = [pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in cluster.pods.values()]
    assert "8192Mi" in limits
    pods = bench.process.controller.state.pods
    large = pods[first["podName"]].shape
    await bench.until(lambda: any(pods[name].shape == large for name in bench.free_ready()))
    _, second = await bench.ask("a:1", resources=resources)
    assert second["warm"]


async def test_the_most_that_is_ready_is_what_was_asked_for(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=[{"image": "a:1", "replicas": 3}])
    await bench.until(lambda: len(bench.free_ready()) == 3)
    for _ in range(5):
        bench.process.controller.round()
    await asyncio.sleep(0.1)
    assert len(cluster.pods) == 3


@pytest.mark.backend("Pod")
async def test_a_reusable_sandbox_serves_the_next_task_in_place(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=REUSED)
    await bench.until(bench.free_ready)
    _, first = await bench.ask(task="a")
    cluster.writes.clear()
    await bench.close(first["id"])
    await bench.until(lambda: first["podName"] in bench.free_ready())
    assert cluster.resets == [first["podName"]]
    assert cluster.writes["DELETE"] == 0
    # The pool was refilled meanwhile; its pod is younger, so the one that came back is taken.
    _, second = await bench.ask(task="b")
    assert (second["podName"], second["warm"]) == (first["podName"], True)
    assert second["id"] != first["id"]
    assert second["task"] == "b"
    # Address and token are the same, so this is what keeps the first client out.
    assert (second["url"], second["token"]) == (first["url"], first["token"])
    assert second["instance"] == cluster.instance(first["podName"]) != first["instance"]


@pytest.mark.backend("Pod")
async def test_a_sandbox_is_not_restarted_where_the_kubelet_would_wait(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=REUSED)
    await bench.until(bench.free_ready)
    _, first = await bench.ask()
    await bench.close(first["id"])
    await bench.until(lambda: first["podName"] in bench.free_ready())
    _, second = await bench.ask()
    assert second["podName"] == first["podName"]
    await bench.close(second["id"])
    await bench.until(lambda: first["podName"] not in cluster.pods)
    assert len(cluster.resets) == 1


@pytest.mark.backend("Pod")
async def test_a_sandbox_that_ran_for_long_is_restarted_again(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=REUSED)
    await bench.until(bench.free_ready)
    _, first = await bench.ask()
    old = {"running": {"startedAt": "2020-01-01T00:00:00Z"}}
    cluster.container(first["podName"], restartCount=0, state=old)
    await bench.close(first["id"])
    await bench.until(lambda: first["podName"] in bench.free_ready())
    cluster.container(first["podName"], restartCount=1, state=old)
    await bench.until(lambda: bench.process.controller.state.pods[first["podName"]].started == 1577836800)
    _, second = await bench.ask()
    assert second["podName"] == first["podName"]
    await bench.close(second["id"])
    await bench.until(lambda: len(cluster.resets) == 2)


@pytest.mark.backend("Pod")
async def test_a_container_that_does_not_come_back_is_deleted(start: Start, cluster: FakeCluster) -> None:
    cluster.restarts = False
    bench = await start(replace(RHYTHM, reset=0.2), warmPools=REUSED)
    await bench.until(bench.free_ready)
    _, found = await bench.ask()
    await bench.close(found["id"])
    assert cluster.resets == [found["podName"]]
    await bench.until(lambda: found["podName"] not in cluster.pods)


@pytest.mark.backend("Pod")
async def test_a_daemon_that_can_t_be_reset_is_deleted(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=REUSED)
    await bench.until(bench.free_ready)
    _, found = await bench.ask()
    cluster.deaf.add(found["podName"])
    await bench.close(found["id"])
    assert found["podName"] not in cluster.pods


async def test_announced_tasks_find_their_sandbox_ready(start: Start, cluster: FakeCluster) -> None:
    bench = await start(lookAhead={"tasks": 2})
    answer = await _announce(bench, "a:1", "b:1", "c:1")
    assert answer == {"accepted": 3, "ahead": 2}
    await bench.until(lambda: len(bench.free_ready()) == 2)
    assert _images(cluster) == {"a:1": 1, "b:1": 1}
    _, found = await bench.ask("a:1", task="a:1")
    assert found["warm"]
    await bench.until(lambda: _images(cluster)["c:1"] == 1)


async def test_who_announces_need_not_know_what_the_task_asks_for(start: Start, cluster: FakeCluster) -> None:
    bench = await start(lookAhead={"tasks": 1})
    resources = {"cpu": 2, "memoryMiB": 8192}
    await bench.ask("hub/swe/a:1", resources=resources)
    await _announce(bench, "hub/swe/b:1")
    await bench.until(bench.free_ready)
    _, found = await bench.ask("hub/swe/b:1", resources=resources, task="called otherwise")
    assert found["warm"]
    assert not bench.process.controller.state.announced


async def test_a_task_announced_twice_gets_two(start: Start, cluster: FakeCluster) -> None:
    bench = await start(lookAhead={"tasks": 3})
    await _announce(bench, "a:1", "a:1", "b:1")
    await bench.until(lambda: len(bench.free_ready()) == 3)
    assert _images(cluster) == {"a:1": 2, "b:1": 1}


async def test_a_pool_serves_announced_tasks_of_its_image(start: Start, cluster: FakeCluster) -> None:
    bench = await start(lookAhead={"tasks": 2}, warmPools=[{"image": "a:1", "replicas": 2}])
    await _announce(bench, "a:1", "a:1")
    await bench.until(lambda: len(bench.free_ready()) == 2)
    await asyncio.sleep(0.1)
    assert _images(cluster) == {"a:1": 2}


async def test_those_that_wait_in_the_queue_are_prepared_first(start: Start, cluster: FakeCluster) -> None:
    bench = await start(maxConcurrent=1, lookAhead={"tasks": 1})
    await _announce(bench, "later:1")
    await bench.until(lambda: _images(cluster)["later:1"] == 1)
    _, first = await bench.ask("a:1")
    _, queued = await bench.ask("b:1", wait=0)
    await bench.until(lambda: _images(cluster)["b:1"] == 1)
    pods = bench.process.controller.state.pods
    await bench.until(lambda: any(pods[name].image == "b:1" for name in bench.free_ready()))
    await bench.close(first["id"])
    assert (await bench.get(queued["id"], wait=5))["warm"]


async def test_what_an_announcement_no_longer_names_stays_for_a_while_and_counts_as_waste(
    start: Start, cluster: FakeCluster
) -> None:
    bench = await start(lookAhead={"tasks": 1})
    await _announce(bench, "a:1")
    await bench.until(lambda: len(bench.free_ready()) == 1)
    await _announce(bench, "b:1")
    await bench.until(lambda: _images(cluster)["b:1"] == 1)
    assert _images(cluster)["a:1"] == 1
    await bench.until(lambda: not _images(cluster)["a:1"])
    await bench.until(lambda: bench.value("wasted_total", made_for="LookAhead") == 1)


async def test_a_sandbox_that_was_used_is_no_waste(start: Start) -> None:
    bench = await start(lookAhead={"tasks": 1})
    await _announce(bench, "a:1")
    await bench.until(bench.free_ready)
    _, found = await bench.ask("a:1", task="a:1")
    await bench.close(found["id"])
    assert bench.value("wasted_total", made_for="LookAhead") == 0


async def test_only_so_many_new_images_of_a_registry_are_pulled_at_once(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start(lookAhead={"tasks": 10}, prePull={"maxPerRegistry": 2})
    await _announce(bench, *(f"a{number}:1" for number in range(5)), "ghcr.io/b:1")
    await bench.until(lambda: len(cluster.pods) == 3)
    await asyncio.sleep(0.1)
    assert _images(cluster) == {"a0:1": 1, "a1:1": 1, "ghcr.io/b:1": 1}
    cluster.starts = True
    cluster.retry()
    await bench.until(lambda: len(bench.free_ready()) == 6)


async def test_requests_are_not_held_back_by_the_limit_of_pulls(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start(lookAhead={"tasks": 10}, prePull={"maxPerRegistry": 1})
    await _announce(bench, "a:1", "b:1")
    await bench.until(lambda: len(cluster.pods) == 1)
    for number in range(3):
        await bench.ask(f"claim{number}:1", wait=0)
    await bench.until(lambda: len(cluster.pods) == 4)


async def test_a_registry_that_answers_429_is_left_alone(start: Start, cluster: FakeCluster) -> None:
    for name in ("a:1", "b:1"):
        cluster.images[name] = ("ErrImagePull", "429 Too Many Requests")
    bench = await start(lookAhead={"tasks": 3}, prePull={"maxPerRegistry": 1})
    await _announce(bench, "a:1", "b:1", "ghcr.io/c:1")
    await bench.until(lambda: bench.value("pull_failures_total", reason="throttled"))
    await bench.until(lambda: _images(cluster) == {"ghcr.io/c:1": 1})
    posts = cluster.writes["POST"]
    await asyncio.sleep(0.2)
    assert cluster.writes["POST"] == posts
    assert (await bench.ask("d:1"))[0] == 201, "somebody waits for this one"


async def test_an_image_that_does_not_exist_is_not_tried_again_and_again(start: Start, cluster: FakeCluster) -> None:
    cluster.images["a:1"] = ("ErrImagePull", "not found")
    bench = await start(warmPools=[{"image": "a:1"}, {"image": "b:1"}])
    await bench.until(lambda: bench.free_ready() and not _images(cluster)["a:1"])
    await asyncio.sleep(0.2)
    assert cluster.writes["POST"] == 2


async def test_a_request_that_no_node_takes_gets_the_place_of_one_made_ahead(
    start: Start, cluster: FakeCluster
) -> None:
    bench = await start(warmPools=[{"image": "a:1", "replicas": 2}])
    await bench.until(lambda: len(bench.free_ready()) == 2)
    cluster.full = True
    cluster.deletion_seconds = 0.2
    _, asked = await bench.ask("b:1", wait=0)
    await bench.until(lambda: _images(cluster) == {"a:1": 1, "b:1": 1})
    cluster.full = False
    cluster.retry()
    assert (await bench.get(asked["id"], wait=5))["state"] == "Running"
    await bench.until(lambda: bench.value("wasted_total", made_for="Pool") == 1)


async def test_nothing_is_made_ahead_while_nodes_are_full(start: Start, cluster: FakeCluster) -> None:
    cluster.full = True
    bench = await start(maxConcurrent=4)
    for _ in range(2):
        await bench.ask("b:1", wait=0)
    await bench.until(lambda: len(cluster.pods) == 2)
    state = bench.process.controller.state
    await bench.until(lambda: all(pod.trouble for pod in state.pods.values()))
    await _announce(bench, "a:1")
    await asyncio.sleep(0.1)
    assert len(cluster.pods) == 2


async def test_pools_do_not_hold_back_requests_while_the_api_server_is_slow(start: Start, cluster: FakeCluster) -> None:
    gate = asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        manifest = await request.json()
        if manifest["metadata"]["annotations"][labels.SANDBOX_MADE_FOR] != "Claim":
            await gate.wait()
        return await cluster.create(request)

    cluster.intercept = slow
    bench = await start(warmPools=[{"image": "a:1", "replicas": 50}])
    assert (await bench.ask("b:1"))[0] == 201
    gate.set()


async def test_a_pool_is_not_refilled_while_requests_make_the_api_server_slow_unless_it_runs_low(
    start: Start, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymtrain_broker.throttled_client._SLOW_SECONDS", -1.0)
    monkeypatch.setattr("gymtrain_broker.throttled_client._QUIET_SECONDS", 60.0)
    bench = await start(warmPools=[{"image": "a:1", "replicas": 8}], lookAhead={"tasks": 1})
    await bench.until(lambda: len(bench.free_ready()) == 8)
    await bench.ask("c:1")  # the first slow write: only from its end on anything gives way
    for _ in range(6):
        await bench.ask("a:1")
        bench.process.controller.round()
    await _announce(bench, "b:1")
    await bench.until(lambda: len(bench.free_ready()) == 3)
    assert _images(cluster) == {"a:1": 8, "b:1": 1, "c:1": 1}, "of the pool 2 are left, a fourth"
    await bench.ask("a:1")
    await bench.until(lambda: len(bench.free_ready()) == 9)


async def test_a_free_pod_too_near_its_end_is_not_leased(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=[{"image": "a:1"}], timeoutSeconds=100)
    await bench.until(bench.free_ready)
    (pod,) = bench.free_ready()
    cluster.end_at(pod, 60)
    state = bench.process.controller.state
    await bench.until(lambda: pod not in state.pods or pod not in bench.free_ready())
    _, found = await bench.ask("a:1")
    assert found["podName"] != pod
    await bench.until(lambda: pod not in cluster.pods)


async def test_a_sandbox_of_a_pool_with_other_settings_is_replaced(start: Start, cluster: FakeCluster) -> None:
    first = await start(warmPools=[{"image": "a:1"}])
    await first.until(first.free_ready)
    (old,) = first.free_ready()
    await first.stop()
    second = await start(replace(RHYTHM, grace=0.05), warmPools=[{"image": "a:1"}], root=True)
    await second.until(lambda: old not in cluster.pods and len(cluster.pods) == 1)


async def test_an_announcement_without_look_ahead_is_noted_and_nothing_made(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    assert await _announce(bench, "a:1") == {"accepted": 1, "ahead": 0}
    await asyncio.sleep(0.05)
    assert not cluster.pods
    _, found = await bench.ask("a:1", task="a:1")
    assert found["state"] == SandboxState.RUNNING
    assert not bench.process.controller.state.announced
