"""The gateway's own spans, and what it passes on of others'."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

import gymtrain_tracing as tracing
from gymtrain_gateway import traces
from gymtrain_gateway.errors import BadCallError
from gymtrain_gateway.settings import TRIES
from gymtrain_gateway.traces import Collector, TraceRelay
from tests.support.otlp import Receiver, receiving
from tests.unit.gateway.conftest import Start
from tests.unit.gateway.fake_vllm import FakeVLLM

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ASKED = {"model": "policy", "messages": [{"role": "user", "content": "a secret question"}]}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def relay(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TraceRelay]:
    """Of this process; its own spans are traced."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gymtrain-gateway")
    environment = {
        tracing.ENDPOINT: f"{receiver.url}/v1/traces",
        "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Basic%20eDp5, x-tenant=lab",
    }
    async with traces.relay("ns", "run", environment) as relay:
        yield relay


def request_of(**resource: str) -> bytes:
    """An ExportTraceServiceRequest of one span."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ALWAYS_ON, resource=Resource(dict(resource)), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("other").start_as_current_span("llm_request"):
        pass
    encoded: bytes = encode_spans(exporter.get_finished_spans()).SerializeToString()
    return encoded


async def test_a_call_in_a_trace_has_a_span_for_each_hop_and_vllm_is_told_its_parent(
    start: Start, relay: TraceRelay, receiver: Receiver
) -> None:
    vllm = FakeVLLM()
    bench = await start(vllm)
    headers = {"traceparent": TRACEPARENT}
    async with bench.http.post(bench.url + "/v1/chat/completions", json=ASKED, headers=headers) as response:
        assert response.status == 200
    await asyncio.to_thread(tracing.stop)
    spans = {span.name: span for span in await receiver.until(lambda spans: len(spans) == 5)}
    call = spans["POST /v1/chat/completions"]
    assert call.parent == "b7ad6b7169203331"
    assert {span.trace for span in spans.values()} == {"0af7651916cd43dd8448eb211c80319c"}
    parts = {name for name, span in spans.items() if span.parent == call.id}
    assert parts == {"wait for a vLLM pod", "render", "generate", "derender"}
    assert vllm.traceparents["generate"] == f"00-{call.trace}-{spans['generate'].id}-01"
    told = {name: call.attributes[name] for name in ("gymtrain.weight_version", "gymtrain.history")}
    assert told == {"gymtrain.weight_version": "run:1:1", "gymtrain.history": "first"}
    assert call.attributes["gen_ai.usage.output_tokens"] == len("ok") + 1
    assert "secret" not in str([span.attributes for span in spans.values()]), "what is said is in no span"


async def test_a_call_that_fails_is_an_error(start: Start, relay: TraceRelay, receiver: Receiver) -> None:
    vllm = FakeVLLM()
    vllm.fail_with = 500
    bench = await start(vllm)
    headers = {"traceparent": TRACEPARENT}
    async with bench.http.post(bench.url + "/v1/chat/completions", json=ASKED, headers=headers) as response:
        assert response.status >= 500
    await asyncio.to_thread(tracing.stop)
    spans = await receiver.until(lambda spans: "POST /v1/chat/completions" in {span.name for span in spans})
    failed = [span.name for span in spans if span.failed]
    assert failed.count("generate") == TRIES, "each try is there"
    assert "POST /v1/chat/completions" in failed
    assert "render" not in failed


async def test_a_call_outside_of_a_trace_leaves_nothing(start: Start, relay: TraceRelay, receiver: Receiver) -> None:
    vllm = FakeVLLM()
    bench = await start(vllm)
    assert (await bench.post("/v1/chat/completions", ASKED))[0] == 200
    await asyncio.to_thread(tracing.stop)
    assert (receiver.spans, vllm.traceparents) == ([], {"render": "", "generate": "", "derender": ""})


async def test_spans_of_others_are_passed_on_as_this_runs_with_the_collectors_credentials(
    start: Start, relay: TraceRelay, receiver: Receiver
) -> None:
    bench = await start(FakeVLLM(), traces=relay)
    body = request_of(**{"service.name": "gymtrain-inference", "k8s.namespace.name": "theirs", "gymtrain.run": "other"})
    async with bench.http.post(bench.url + "/v1/traces", data=body) as response:
        assert response.status == 200
    (span,) = await receiver.until(lambda spans: bool(spans))
    assert (span.service, span.name) == ("gymtrain-inference", "llm_request")
    assert (span.resource["k8s.namespace.name"], span.resource["gymtrain.run"]) == ("ns", "run")
    assert (receiver.headers[0]["authorization"], receiver.headers[0]["x-tenant"]) == ("Basic eDp5", "lab")


async def test_what_is_no_otlp_is_refused(start: Start, relay: TraceRelay, receiver: Receiver) -> None:
    bench = await start(FakeVLLM(), traces=relay)
    status, answer, _ = await bench.post("/v1/traces", {"resourceSpans": []})
    assert status == 400
    assert "protobuf" in answer["error"]["message"]
    assert receiver.requests == 0


async def test_a_request_larger_than_exporters_make_is_refused(start: Start, relay: TraceRelay) -> None:
    bench = await start(FakeVLLM(), traces=relay)
    async with bench.http.post(bench.url + "/v1/traces", data=bytes(traces.MAX_BYTES + 1)) as response:
        assert response.status == 400


async def test_without_tracing_there_is_no_such_route(start: Start) -> None:
    bench = await start(FakeVLLM())
    async with bench.http.post(bench.url + "/v1/traces", data=b"") as response:
        assert response.status == 404


async def test_a_collector_that_is_away_gets_what_waits_once_it_is_back_and_the_log_says_it_once(
    relay: TraceRelay, receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_PAUSE_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    receiver.status = 503
    for _ in range(3):
        relay.take(request_of())
    await receiver.until(lambda _: receiver.requests >= 3)
    receiver.status = 200
    await receiver.until(lambda spans: len(spans) == 3)
    await receiver.until(lambda _: not relay.waiting)
    said = [record.getMessage() for record in caplog.records if record.name == traces.__name__]
    assert len(said) == 2, said
    assert said[0].endswith("it answered 503. Rollouts go on; up to 16 MiB of spans wait")
    assert said[1].endswith("again; 0 requests were dropped")


async def test_what_waits_is_bounded_and_the_oldest_goes_first() -> None:
    one = request_of()
    async with aiohttp.ClientSession() as http:
        nobody = TraceRelay(Collector("http://127.0.0.1:9/v1/traces"), http, most=10 * len(one))
        for _ in range(1000):
            nobody.take(one)
        assert nobody.waiting <= 10 * len(one)
        assert nobody.dropped >= 990


async def test_credentials_that_are_no_headers_are_told_and_nothing_ends(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    async with aiohttp.ClientSession() as http:
        broken = TraceRelay(Collector(f"{receiver.url}/v1/traces", {"Authorization": "Bearer\na"}), http)
        broken.take(request_of())
        sending = asyncio.create_task(broken.run())
        await receiver.until(lambda _: bool(caplog.records) or sending.done())
        assert not sending.done()
        sending.cancel()
    assert "header" in caplog.records[0].getMessage()
    assert (receiver.requests, broken.waiting > 0) == (0, True)


async def test_what_the_collector_refuses_for_good_does_not_hold_up_the_rest(
    relay: TraceRelay, receiver: Receiver
) -> None:
    receiver.status = 400
    relay.take(request_of())
    await receiver.until(lambda _: relay.dropped == 1)
    receiver.status = 200
    relay.take(request_of())
    assert len(await receiver.until(lambda spans: bool(spans))) == 1


async def test_a_call_is_answered_while_nobody_takes_spans(start: Start, receiver: Receiver, relay: TraceRelay) -> None:
    receiver.status = 503
    bench = await start(FakeVLLM(), traces=relay)
    headers: dict[str, Any] = {"traceparent": TRACEPARENT}
    for _ in range(5):
        async with bench.http.post(bench.url + "/v1/chat/completions", json=ASKED, headers=headers) as response:
            assert response.status == 200


def test_a_body_that_is_cut_is_refused() -> None:
    with pytest.raises(BadCallError, match="OTLP"):
        asyncio.run(_take(request_of()[:-3]))


async def _take(body: bytes) -> None:
    async with aiohttp.ClientSession() as http:
        TraceRelay(Collector("http://127.0.0.1:9"), http).take(body)
