"""The broker, the API server or the watch goes away: nothing is lost, nothing is leased twice."""

import asyncio
import json

import pytest

from gymtrain_api import labels
from gymtrain_api.sandboxes import SandboxRequest, SandboxState
from gymtrain_broker.control.pod_watch import PodsListed
from gymtrain_broker.objects.leases import Found, Lease, lease_annotations
from tests.support.fake_pods import FakeCluster, refusal
from tests.unit.broker.conftest import Bench, Start

pytestmark = pytest.mark.backend("Pod", "AgentSandbox")


async def test_claims_survive_a_restart(start: Start, cluster: FakeCluster) -> None:
    first = await start()
    _, before = await first.ask(key="k", task="t", env={"A": "b"}, metadata={"c": "d"})
    await first.stop()
    second = await start()
    after = await second.until_state(before["id"], SandboxState.RUNNING)
    assert after == {**before, "readyAt": after["readyAt"], "expiresAt": after["expiresAt"]}
    status, again = await second.ask(key="k")
    assert (status, again["id"], len(cluster.pods)) == (201, before["id"], 1)


async def test_what_starts_survives_a_restart(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    first = await start()
    _, asked = await first.ask(wait=0, key="k")
    await first.until(lambda: cluster.pods)
    await first.stop()
    second = await start()
    cluster.starts = True
    cluster.retry()
    assert (await second.get(asked["id"], wait=5))["state"] == "Running"


async def test_a_queued_client_asks_the_next_broker_with_its_key(start: Start) -> None:
    first = await start(maxConcurrent=1)
    _, running = await first.ask(key="a")
    waiting = asyncio.create_task(first.ask(key="b", wait=60))
    await first.until(lambda: len(first.process.controller.state.queue))
    first.process.controller.end_waits()
    status, queued = await waiting
    assert (status, queued["state"]) == (202, "Queued")
    await first.stop()
    second = await start(maxConcurrent=1)
    await second.until_state(running["id"], SandboxState.RUNNING)
    assert (await second.ask(key="b", wait=0))[1]["state"] == "Queued"
    await second.close(running["id"])
    assert (await second.ask(key="b"))[0] == 201


async def test_free_pods_survive_a_restart(start: Start, cluster: FakeCluster) -> None:
    pools = [{"image": "task:1", "replicas": 2}]
    first = await start(warmPools=pools)
    await first.until(lambda: len(first.free_ready()) == 2)
    before = set(cluster.pods)
    await first.stop()
    second = await start(warmPools=pools)
    await second.until(lambda: len(second.free_ready()) == 2)
    assert set(cluster.pods) == before


async def test_a_new_broker_takes_no_request_before_it_knows_the_pods(start: Start, cluster: FakeCluster) -> None:
    first = await start()
    _, before = await first.ask(key="k")
    await first.stop()
    cluster.down = True
    second = await start(synced=False)
    asking = asyncio.create_task(second.ask(key="k"))
    await asyncio.sleep(0.05)
    assert (await second.call("GET", "/readyz"))[0] == 503
    cluster.down = False
    assert (await asking)[1]["id"] == before["id"]


async def test_two_brokers_never_lease_one_pod_twice(start: Start, cluster: FakeCluster) -> None:
    pools = [{"image": "task:1", "replicas": 8}]
    benches: list[Bench] = [await start(warmPools=pools) for _ in range(2)]
    await benches[0].until(lambda: all(len(bench.free_ready()) >= 8 for bench in benches))
    answers = await asyncio.gather(*(bench.ask() for bench in benches for _ in range(8)))
    assert {status for status, _ in answers} == {201}
    assert len({found["podName"] for _, found in answers}) == 16
    assert len({found["id"] for _, found in answers}) == 16


async def test_a_pod_that_another_broker_took_is_replaced(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=[{"image": "task:1"}])
    await bench.until(bench.free_ready)
    (pod,) = bench.free_ready()
    # As if the watch had not told yet.
    other = Lease("sb-other", 0.0, 0.0, 60.0, 60.0, 0, Found.READY)
    notes = lease_annotations(other, SandboxRequest(image="task:1"))
    cluster.silently(pod, notes)
    status, found = await bench.ask()
    assert status == 201
    assert found["podName"] != pod
    assert cluster.notes(pod)[labels.SANDBOX_CLAIM] == "sb-other"


async def test_a_watch_that_fell_behind_lists_anew(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    _, first = await bench.ask()
    lists = cluster.lists
    cluster.vanish(first["podName"])  # its deletion is never told
    cluster.forget_history()
    found = await bench.until_state(first["id"], SandboxState.FAILED)
    assert found["reason"] == "PodDeleted"
    assert cluster.lists == lists + 1
    assert (await bench.ask())[0] == 201


async def test_a_pod_made_while_all_are_listed_is_kept(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    _, found = await bench.ask()
    version = int(cluster.pods[found["podName"]]["metadata"]["resourceVersion"]) - 50
    bench.process.controller.apply(PodsListed([], version))
    assert (await bench.get(found["id"]))["state"] == "Running"


async def test_an_api_server_that_is_away_for_a_moment_costs_no_request(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=[{"image": "task:1"}])
    await bench.until(bench.free_ready)
    cluster.down = True
    asking = [asyncio.create_task(bench.ask()) for _ in range(3)]
    await asyncio.sleep(0.1)
    cluster.down = False
    assert [status for status, _ in await asyncio.gather(*asking)] == [201, 201, 201]


async def test_a_lease_whose_answer_got_lost_stands(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=[{"image": "task:1"}])
    await bench.until(bench.free_ready)
    (pod,) = bench.free_ready()
    cluster.lose["PATCH"] = 1
    status, found = await bench.ask()
    assert (status, found["podName"]) == (201, pod)


async def test_a_pod_whose_answer_got_lost_is_not_made_twice(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    cluster.lose["POST"] = 1
    assert (await bench.ask())[0] == 201
    assert len(cluster.pods) == 1


async def test_a_pod_whose_answer_got_lost_is_looked_for_until_the_api_server_tells(
    start: Start, cluster: FakeCluster
) -> None:
    cluster.starts = False
    bench = await start()
    cluster.lose["POST"] = 1
    away = [refusal(503, "down") for _ in range(2)]
    cluster.refuse = lambda verb, _: away.pop() if verb == "GET" and away else None
    _, asked = await bench.ask(wait=0)
    await bench.until(lambda: not away)
    cluster.starts = True
    cluster.retry()
    assert (await bench.get(asked["id"], wait=5))["state"] == "Running"
    assert len(cluster.pods) == 1


async def test_a_lease_that_another_took_is_looked_at_until_the_api_server_tells(
    start: Start, cluster: FakeCluster
) -> None:
    bench = await start(warmPools=[{"image": "task:1"}])
    await bench.until(bench.free_ready)
    (pod,) = bench.free_ready()
    other = Lease("sb-other", 0.0, 0.0, 60.0, 60.0, 0, Found.READY)
    cluster.silently(pod, lease_annotations(other, SandboxRequest(image="task:1")))
    away = [refusal(503, "down")]
    cluster.refuse = lambda verb, _: away.pop() if verb == "GET" and away else None
    status, found = await bench.ask()
    assert (status, found["podName"] != pod, away) == (201, True, [])


async def test_a_close_that_the_api_server_does_not_take_is_tried_until_it_does(
    start: Start, cluster: FakeCluster
) -> None:
    bench = await start()
    _, found = await bench.ask()
    cluster.down = True
    assert await bench.close(found["id"]) == 503
    cluster.down = False
    await bench.until(lambda: not cluster.pods)
    assert await bench.close(found["id"]) == 204


async def test_a_lease_that_can_t_be_read_does_not_leak_its_pod(start: Start, cluster: FakeCluster) -> None:
    first = await start()
    _, found = await first.ask()
    await first.stop()
    cluster.annotate(found["podName"], {labels.SANDBOX_REQUEST: "odd"})
    await start()
    await first.until(lambda: not cluster.pods)


async def test_the_lease_stands_on_the_pod(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    _, found = await bench.ask(key="k", ttlSeconds=50)
    notes = cluster.notes(found["podName"])
    assert json.loads(notes[labels.SANDBOX_REQUEST])["key"] == "k"
    assert json.loads(notes[labels.SANDBOX_LEASE])["ttl"] == 50
    assert notes[labels.SANDBOX_EXPIRES_AT].endswith("Z")
