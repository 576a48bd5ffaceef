"""Asking for a sandbox, waiting for it, closing it."""

import asyncio
import hashlib
import hmac
from dataclasses import replace
from typing import Any

import pytest

from gymtrain_api import labels, sandboxes
from gymtrain_api.sandboxes import SandboxState
from gymtrain_broker.policy import plan
from tests.support.fake_pods import FakeCluster
from tests.unit.broker.conftest import RHYTHM, TOKEN, Start

pytestmark = pytest.mark.backend("Pod", "AgentSandbox")


async def test_a_warm_sandbox_costs_one_write(start: Start, cluster: FakeCluster) -> None:
    bench = await start(warmPools=[{"image": "task:1"}])
    await bench.until(bench.free_ready)
    (pod,) = bench.free_ready()
    cluster.writes.clear()
    cluster.starts = False  # its refill is not what is counted
    status, found = await bench.ask(task="t", env={"A": "b"}, workdir="/w")
    assert (status, found["state"], found["warm"], found["podName"]) == (201, "Running", True, pod)
    assert cluster.writes["PATCH"] == 1
    assert cluster.writes["DELETE"] == 0
    assert (found["env"], found["workdir"]) == ({"A": "b"}, "/w")
    assert cluster.notes(pod)[labels.SANDBOX_TASK] == "t"
    assert bench.value("claims_total", found="ready") == 1
    assert bench.value("claim_seconds_count", found="ready") == 1


async def test_a_cold_sandbox_costs_one_write_too(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    status, found = await bench.ask()
    assert (status, found["state"], found["warm"]) == (201, "Running", False)
    assert cluster.writes == {"POST": 1}
    assert cluster.notes(found["podName"])[labels.SANDBOX_CLAIM] == found["id"]


async def test_url_and_token_lead_to_the_daemon(start: Start, cluster: FakeCluster, backend: str) -> None:
    bench = await start()
    _, found = await bench.ask()
    identity = found["podName"] if backend == "Pod" else cluster.pods[found["podName"]]["metadata"]["uid"]
    expected = hmac.new(TOKEN.encode(), f"sandbox:{identity}".encode(), hashlib.sha256).hexdigest()
    assert found["token"] == expected
    async with bench.http.get(found["url"] + "/healthz") as answer:
        assert answer.status == 200


async def test_without_waiting_the_answer_is_that_it_starts(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start()
    status, found = await bench.ask(wait=0)
    assert (status, found["state"], found["url"], found["token"]) == (202, "Starting", None, None)
    await bench.until(lambda: cluster.pods)
    cluster.starts = True
    cluster.retry()
    assert (await bench.get(found["id"], wait=5))["state"] == "Running"


async def test_a_pod_on_its_way_is_taken_rather_than_a_new_one_made(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start(warmPools=[{"image": "task:1"}])
    await bench.until(lambda: cluster.pods)
    (pod,) = list(cluster.pods)
    _, asked = await bench.ask(wait=0)
    await bench.until(lambda: cluster.notes(pod)[labels.SANDBOX_CLAIM])
    cluster.run_pod(pod)
    found = await bench.get(asked["id"], wait=5)
    assert (found["state"], found["podName"], found["warm"]) == ("Running", pod, False)


async def test_the_same_key_is_the_same_sandbox(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    (_, first), (_, second) = await asyncio.gather(bench.ask(key="k"), bench.ask(key="k"))
    assert first["id"] == second["id"]
    assert len(cluster.pods) == 1


async def test_a_key_can_t_be_used_for_another_image(start: Start) -> None:
    bench = await start()
    await bench.ask(key="k")
    status, refusal = await bench.ask(image="other:1", key="k")
    assert (status, refusal["error"]) == (409, "key_reused")
    assert "use another key" in refusal["message"]


async def test_requests_beyond_the_limit_wait_and_know_their_place(start: Start) -> None:
    bench = await start(maxConcurrent=1)
    _, running = await bench.ask()
    status, second = await bench.ask(wait=0, task="b")
    _, third = await bench.ask(wait=0, task="b")
    assert (status, second["state"], second["position"], third["position"]) == (202, "Queued", 1, 2)
    assert await bench.close(running["id"]) == 204
    assert (await bench.get(second["id"], wait=5))["state"] == "Running"
    assert (await bench.get(third["id"]))["position"] == 1


async def test_another_task_does_not_wait_for_all_of_the_first(start: Start) -> None:
    bench = await start(maxConcurrent=1)
    _, running = await bench.ask(task="busy")
    waiting = [(await bench.ask(wait=0, task="busy"))[1]["id"] for _ in range(10)]
    _, other = await bench.ask(wait=0, task="other")
    assert other["position"] == 2
    await bench.close(running["id"])
    await bench.until_state(waiting[0], SandboxState.RUNNING)
    await bench.close(waiting[0])
    assert (await bench.get(other["id"], wait=5))["state"] == "Running"


async def test_a_queued_request_can_be_closed(start: Start, cluster: FakeCluster) -> None:
    bench = await start(maxConcurrent=1)
    await bench.ask()
    _, queued = await bench.ask(wait=0)
    waiting = asyncio.create_task(bench.get(queued["id"], wait=5))
    assert await bench.close(queued["id"]) == 204
    assert (await waiting)["state"] == "Closed"
    assert len(cluster.pods) == 1


async def test_a_request_that_starts_can_be_closed(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start()
    _, found = await bench.ask(wait=0)
    assert await bench.close(found["id"]) == 204
    await bench.until(lambda: not cluster.pods)
    assert (await bench.get(found["id"]))["state"] == "Closed"


async def test_closing_is_idempotent_and_deletes_the_pod(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    _, found = await bench.ask()
    assert [await bench.close(found["id"]) for _ in range(2)] == [204, 204]
    assert await bench.close("sb-never") == 204
    assert not cluster.pods
    assert cluster.writes == {"POST": 1, "DELETE": 1}


async def test_a_full_queue_refuses_and_says_when_to_ask_again(start: Start) -> None:
    bench = await start(maxConcurrent=1, maxQueued=1)
    await bench.ask()
    await bench.ask(wait=0)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with bench.http.post(bench.url + "/v1/sandboxes", json={"image": "task:1"}, headers=headers) as answer:
        assert answer.status == 429
        assert int(answer.headers["Retry-After"]) > 0
        assert "maxQueued" in (await answer.json())["message"]


async def test_no_turn_in_time_is_a_deadline(start: Start) -> None:
    bench = await start(maxConcurrent=1)
    await bench.ask()
    status, found = await bench.ask(timeoutSeconds=0.1)
    assert (status, found["state"], found["reason"]) == (504, "Failed", "Deadline")
    assert "maxConcurrent" in found["message"]


async def test_no_start_in_time_is_a_deadline_and_leaves_no_pod(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start()
    status, found = await bench.ask(timeoutSeconds=0.2)
    assert (status, found["reason"]) == (504, "Deadline")
    await bench.until(lambda: not cluster.pods)


async def test_a_daemon_that_does_not_answer_is_named(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start()
    _, asked = await bench.ask(wait=0, timeoutSeconds=0.5)
    await bench.until(lambda: cluster.pods)
    (pod,) = list(cluster.pods)
    cluster.deaf.add(pod)
    cluster.run_pod(pod)
    found = await bench.get(asked["id"], wait=5)
    assert "NetworkPolicies" in found["message"]


async def test_a_client_that_goes_away_without_a_key_leaves_nothing(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start()
    asking = asyncio.create_task(bench.ask(wait=60))
    await bench.until(lambda: cluster.pods)
    asking.cancel()
    await bench.until(lambda: not cluster.pods)


async def test_a_client_that_goes_away_with_a_key_may_come_back(start: Start, cluster: FakeCluster) -> None:
    cluster.starts = False
    bench = await start()
    asking = asyncio.create_task(bench.ask(wait=60, key="k"))
    await bench.until(lambda: cluster.pods)
    asking.cancel()
    await asyncio.sleep(0.05)
    cluster.starts = True
    cluster.retry()
    status, _ = await bench.ask(key="k")
    assert (status, len(cluster.pods)) == (201, 1)


async def test_what_nobody_waits_for_is_given_up(start: Start, cluster: FakeCluster, monkeypatch: Any) -> None:
    monkeypatch.setattr(plan, "ABANDONED_SECONDS", 0.1)
    cluster.starts = False
    bench = await start()
    _, found = await bench.ask(wait=0, key="k")
    found = await bench.until_state(found["id"], SandboxState.CLOSED)
    assert found["reason"] == "Abandoned"
    await bench.until(lambda: not cluster.pods)


async def test_the_list_shows_what_is_open(start: Start) -> None:
    bench = await start()
    _, first = await bench.ask(task="a")
    _, second = await bench.ask(task="b")
    await bench.close(first["id"])
    _, listed = await bench.call("GET", "/v1/sandboxes")
    assert [(one["id"], one["task"]) for one in listed["sandboxes"]] == [(second["id"], "b")]


async def test_final_sandboxes_are_forgotten_after_a_while(start: Start) -> None:
    bench = await start(replace(RHYTHM, remembered=0.05))
    _, found = await bench.ask()
    await bench.close(found["id"])
    await bench.until(lambda: not bench.process.controller.state.claims)
    status, refusal = await bench.call("GET", f"/v1/sandboxes/{found['id']}")
    assert (status, refusal["error"]) == (404, "not_found")


async def test_a_daemon_that_does_not_tell_which_one_it_is_serves_too(start: Start, cluster: FakeCluster) -> None:
    cluster.instances = False
    status, found = await (await start()).ask()
    assert (status, found["instance"]) == (201, None)


@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/sandboxes/x", "/v1/sandboxes/x/daemon/healthz"])
async def test_without_the_token_nothing_is_told(start: Start, path: str) -> None:
    bench = await start()
    status, refusal = await bench.call("GET", path, token="wrong")
    assert (status, refusal["error"]) == (401, "unauthorized")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "image"),
        ({"image": "not an image"}, "image"),
        ({"image": "a:1", "ports": [0]}, "ports"),
        ({"image": "a:1", "resources": {"memoryMiB": -1}}, "memoryMiB"),
        ({"image": "a:1", "env": {"A": "x" * sandboxes.REQUEST_BYTES}}, "bytes"),
    ],
)
async def test_bad_requests_name_the_field(start: Start, body: dict[str, Any], named: str) -> None:
    bench = await start()
    status, refusal = await bench.call("POST", "/v1/sandboxes", body)
    assert (status, refusal["error"]) == (400, "bad_request")
    assert named in refusal["message"]


async def test_a_wait_that_is_no_time_is_refused(start: Start) -> None:
    bench = await start()
    assert (await bench.call("POST", "/v1/sandboxes?wait=long", {"image": "a:1"}))[0] == 400


async def test_root_in_a_run_without_root_is_refused_with_the_fix(start: Start) -> None:
    bench = await start()
    status, refusal = await bench.ask(user="root")
    assert status == 422
    assert "spec.sandboxes.root" in refusal["message"]
    assert (await (await start(root=True)).ask(user="root"))[0] == 201


async def test_calls_to_the_daemon_are_passed_on(start: Start, cluster: FakeCluster) -> None:
    bench = await start()
    _, found = await bench.ask()
    path = f"/v1/sandboxes/{found['id']}/daemon/v1/file?path=/a%20b"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with bench.http.put(bench.url + path, data=b"content", headers=headers) as answer:
        seen = await answer.json()
    assert seen == {"pod": found["podName"], "authorization": f"Bearer {found['token']}", "body": "content"}
    assert cluster.calls == [("PUT", "/v1/file?path=/a%20b", b"content")]


async def test_calls_to_a_sandbox_that_does_not_run_are_refused(start: Start) -> None:
    bench = await start()
    _, found = await bench.ask()
    await bench.close(found["id"])
    status, refusal = await bench.call("GET", f"/v1/sandboxes/{found['id']}/daemon/healthz")
    assert (status, refusal["error"]) == (409, "not_running")


async def test_the_document_of_the_api_names_all_routes(start: Start) -> None:
    bench = await start()
    _, document = await bench.call("GET", "/openapi.json", token="")
    routes = {resource.canonical for resource in bench.process.api.app().router.resources()}
    assert set(document["paths"]) == routes
    assert "Sandbox" in document["components"]["schemas"]


async def test_probes_and_metrics_need_no_token(start: Start) -> None:
    bench = await start()
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await bench.call("GET", path, token=""))[0] == 200
    _, text = await bench.call("GET", "/metrics", token="")
    assert "gymtrain_broker_queued 0.0" in text
