"""What the gateway does when pods, clients and requests misbehave."""

import asyncio
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.unit.gateway.conftest import Start
from tests.unit.gateway.fake_vllm import FakeVLLM

CHAT = "/v1/chat/completions"
TCP_OPTIONS = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)


def request(text: str = "q", **more: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"n": 2}, "n: 2"),
        ({"stream": True}, "stream"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [1]}, "messages"),
    ],
)
async def test_what_cannot_be_exact_is_refused(start: Start, more: dict[str, Any], word: str) -> None:
    bench = await start(FakeVLLM())
    status, document, _ = await bench.post(CHAT, request() | more)
    assert status == 400
    assert word in document["error"]["message"]


async def test_a_body_that_is_no_json_object_is_refused(start: Start) -> None:
    bench = await start(FakeVLLM())
    assert (await bench.post(CHAT, [1]))[0] == 400
    async with bench.http.post(bench.url + CHAT, data=b"{") as response:
        assert response.status == 400


async def test_without_the_scale_out_routes_it_says_what_to_set(start: Start) -> None:
    pod = FakeVLLM()
    pod.scale_out = False
    bench = await start(pod)
    status, document, _ = await bench.post(CHAT, request())
    assert status == 501
    assert "--enable-scale-out" in document["error"]["message"]
    assert pod.generated == 0


async def test_vllms_refusals_go_through_unchanged(start: Start) -> None:
    bench = await start(FakeVLLM())
    status, document, _ = await bench.post(CHAT, request(temperature="hot"))
    assert (status, document) == (400, {"error": {"message": "temperature: no number"}})
    async with bench.http.post(bench.url + "/v1/responses", json={"input": "q"}) as response:
        assert response.status == 404


async def test_a_pod_that_fails_is_left_for_another(start: Start) -> None:
    bad, good = FakeVLLM(), FakeVLLM()
    bad.fail_with = 500
    bench = await start(bad, good)
    # so many that the hash gives some to each pod
    answers = [await bench.post(CHAT, request(f"q{number}")) for number in range(24)]
    assert [status for status, _, _ in answers] == [200] * 24
    assert "generate" in bad.calls
    assert 'retries_total{reason="status"}' in (await bench.get("/metrics"))[1]


async def test_a_pod_that_dies_is_left_for_another(start: Start) -> None:
    pods = [FakeVLLM(), FakeVLLM()]
    bench = await start(*pods)
    home, other = pods
    calls = [asyncio.create_task(bench.post(CHAT, request(f"q{number}"))) for number in range(6)]
    await home.stop()
    assert [status for status, _, _ in await asyncio.gather(*calls)] == [200] * 6
    await bench.until(lambda: bench.pods.admissible() == [other.url])


async def test_connections_to_pods_end_when_their_node_is_gone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keep-alive probes a call would wait for a dead node until its deadline."""
    found: list[socket.socket] = []
    connect = aiohttp.TCPConnector.connect

    async def noted(*args: Any, **kwargs: Any) -> Any:
        connection = await connect(*args, **kwargs)
        assert connection.transport is not None
        found.append(connection.transport.get_extra_info("socket"))
        return connection

    pod = FakeVLLM()
    bench = await start(pod)
    monkeypatch.setattr(aiohttp.TCPConnector, "connect", noted)
    assert (await bench.post(CHAT, request()))[0] == 200
    host, port = pod.url.removeprefix("http://").split(":")
    options = {
        (
            one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            *(one.getsockopt(socket.IPPROTO_TCP, option) for option in TCP_OPTIONS),
        )
        for one in found
        if one.getpeername() == (host, int(port))
    }
    assert options == {(1, 5, 5, 3, 20_000)}


async def test_tries_have_a_limit(start: Start) -> None:
    pod = FakeVLLM()
    pod.fail_with = 503
    bench = await start(pod)
    status, document, _ = await bench.post(CHAT, request())
    assert (status, document["error"]["type"], document["error"]["code"]) == (500, "BadGateway", 500)
    assert "failed 3 times" in document["error"]["message"]
    assert "engine died" in document["error"]["message"]


async def test_a_call_that_kills_its_only_pod_is_not_one_that_waits_for_a_pod(start: Start) -> None:
    """NeMo Gym's model servers repeat a call that waits without end: one that kills vLLM must not look like it."""
    pod = FakeVLLM()
    pod.dies = True
    bench = await start(pod, timeout_seconds=2.0)
    status, document, _ = await bench.post(CHAT, request())
    assert (status, document["error"]["type"]) == (500, "BadGateway")
    assert "no vLLM pod took the call" in document["error"]["message"]
    assert (await bench.post(CHAT, request()))[0] == 503


async def test_calls_wait_for_a_pod_with_the_runs_weights(start: Start) -> None:
    pod = FakeVLLM(label="default")
    bench = await start(pod, ready=False)
    await bench.until(lambda: bool(bench.pods.admissions))
    call = asyncio.create_task(bench.post(CHAT, request()))
    await asyncio.sleep(0.1)
    assert not call.done()
    status, text = await bench.get("/ready")
    assert status == 503
    assert text
    pod.label = "run:1:1"
    assert (await call)[0] == 200
    assert (await bench.get("/ready"))[0] == 200


async def test_a_pod_that_a_look_met_in_a_weight_sync_gets_calls(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymtrain_gateway.pod_choice._LONG_PAUSE_SECONDS", 600.0)  # however slow this machine is
    pod = FakeVLLM()
    pod.paused = True
    bench = await start(pod, ready=False, timeout_seconds=20.0)
    assert (await bench.post(CHAT, request()))[0] == 200, "vLLM keeps it, and answers when it goes on"


async def test_a_pod_that_goes_on_after_a_long_pause_gets_calls_before_the_next_usual_look(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymtrain_gateway.pods._PERIOD_SECONDS", 600.0)
    monkeypatch.setattr("gymtrain_gateway.pod_choice._LONG_PAUSE_SECONDS", 0.0)
    pod = FakeVLLM()
    pod.paused = True
    bench = await start(pod, ready=False, timeout_seconds=20.0)
    await bench.until(lambda: any(admission.syncing for admission in bench.pods.admissions.values()))
    call = asyncio.create_task(bench.post(CHAT, request()))
    await asyncio.sleep(0.1)
    assert not call.done()
    pod.paused = False
    assert (await call)[0] == 200


async def test_without_a_pod_the_deadline_answers_with_the_reason(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymtrain_gateway.pod_choice._LONG_PAUSE_SECONDS", 0.0)
    pod = FakeVLLM()
    pod.paused = True
    bench = await start(pod, ready=False, timeout_seconds=1.0)
    status, document, headers = await bench.post(CHAT, request())
    assert (status, document["error"]["type"]) == (503, "ServiceUnavailable")
    assert "generation is paused" in document["error"]["message"]
    assert "Retry-After" in headers
    assert 'refused_total{status="503"}' in (await bench.get("/metrics"))[1]


async def test_a_pod_that_answers_too_late_is_a_timeout(start: Start) -> None:
    pod = FakeVLLM()
    pod.hang.clear()
    bench = await start(pod, timeout_seconds=1.0)
    status, document, _ = await bench.post(CHAT, request())
    assert (status, document["error"]["type"], document["error"]["code"]) == (500, "GatewayTimeout", 500)
    message = document["error"]["message"]
    assert "spec.gateway.timeoutSeconds" in message
    assert not any(word in message for word in ("context length", "max_tokens"))  # a full context, to model servers
    await bench.until(lambda: pod.cancelled == 1)


async def test_a_pod_works_on_so_many_calls_at_once_and_the_rest_waits_its_turn(start: Start) -> None:
    pod = FakeVLLM()
    pod.hang.clear()
    bench = await start(pod, max_in_flight=2)
    calls = [asyncio.create_task(bench.post(CHAT, request(f"q{number}"))) for number in range(5)]
    await bench.until(lambda: pod.calls.count("generate") == 2)
    metrics = (await bench.get("/metrics"))[1]
    assert "gymtrain_gateway_queued_requests 3.0" in metrics
    assert f'gymtrain_gateway_in_flight_requests{{pod="{pod.url}"}} 2.0' in metrics
    assert f'admissible="true",pod="{pod.url}",version="run:1:1"' in metrics
    pod.hang.set()
    assert [status for status, _, _ in await asyncio.gather(*calls)] == [200] * 5


async def test_a_client_that_leaves_frees_its_pod(start: Start) -> None:
    pod = FakeVLLM()
    pod.hang.clear()
    bench = await start(pod, max_in_flight=1)
    calls = [asyncio.create_task(bench.post(CHAT, request(name))) for name in ("works", "waits")]
    await bench.until(lambda: pod.calls.count("generate") == 1)
    calls[0].cancel()
    await bench.until(lambda: pod.cancelled == 1)
    pod.hang.set()
    assert (await calls[1])[0] == 200


async def test_a_pod_with_stale_weights_gets_nothing(start: Start) -> None:
    fresh, stale = FakeVLLM("run:1:9"), FakeVLLM("run:1:1")
    bench = await start(fresh, stale, ready=False)
    await bench.until(lambda: bench.pods.admissible() == [fresh.url])
    for number in range(6):
        assert (await bench.post(CHAT, request(f"q{number}")))[0] == 200
    assert "generate" not in stale.calls
    document = (await bench.post("/gymtrain/ledger", {"digests": []}))[1]
    assert document["entries"] == {}
    assert "more than 2 behind" in (await bench.get("/gymtrain/pods"))[1]


async def test_pods_stay_known_while_dns_is_away_and_leave_with_their_address(start: Start) -> None:
    one, other = FakeVLLM(), FakeVLLM()
    bench = await start(one, other)
    bench.known.remove(other.url)
    await bench.until(lambda: bench.pods.admissible() == [one.url])
    bench.pods._find = _no_dns
    await asyncio.sleep(1.2)  # two looks
    assert bench.pods.admissible() == [one.url]


async def _no_dns(host: str, port: int) -> None:
    return None


async def test_the_trainer_says_what_pods_hold_that_cannot_say_it(start: Start) -> None:
    pod = FakeVLLM(label=None)
    await pod.start()
    held = {"version": "run:1:4", "pods": {pod.url: "run:1:4"}}

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(held)

    app = web.Application()
    app.router.add_get("/weights/held", answer)
    async with TestServer(app, host="127.0.0.1") as trainer:
        bench = await start(pod, trainer=f"http://127.0.0.1:{trainer.port}")
        pod.hang.clear()
        call = asyncio.create_task(bench.post(CHAT, request()))
        await bench.until(lambda: pod.calls.count("generate") == 1)
        held["pods"] = {pod.url: "run:1:5"}
        pod.hang.set()
        status, _, headers = await call
    assert status == 200
    assert headers["x-gymtrain-weight-version"] == "run:1:4,run:1:5"


async def test_a_streamed_completion_goes_through(start: Start) -> None:
    bench = await start(FakeVLLM())
    body = {"prompt": "q", "stream": True}
    async with bench.http.post(bench.url + "/v1/completions", json=body) as response:
        assert response.content_type == "text/event-stream"
        assert await response.text() == "data: one\n\ndata: two\n\n"


async def test_models_and_health(start: Start) -> None:
    bench = await start(FakeVLLM())
    assert "policy" in (await bench.get("/v1/models"))[1]
    assert (await bench.get("/health"))[0] == 200


async def test_a_gateway_that_stops_ends_what_is_open_and_sends_clients_away(start: Start) -> None:
    pod = FakeVLLM()
    pod.hang.clear()
    bench = await start(pod)
    call = asyncio.create_task(bench.post(CHAT, request()))
    await bench.until(lambda: pod.calls.count("generate") == 1)
    bench.drain.begin()
    assert (await bench.get("/ready"))[0] == 503
    stopped = asyncio.create_task(bench.drain.wait())
    await asyncio.sleep(0.1)
    assert not stopped.done()
    pod.hang.set()
    status, _, headers = await call
    assert status == 200
    assert headers["Connection"] == "close"
    async with asyncio.timeout(5):
        await stopped


async def test_a_ledger_question_that_is_none_is_refused(start: Start) -> None:
    bench = await start(FakeVLLM())
    assert (await bench.post("/gymtrain/ledger", {"digests": ["a"] * 5000}))[0] == 400
    assert isinstance(bench.http, aiohttp.ClientSession)
