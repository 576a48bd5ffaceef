"""The broker's spans: which sandbox a rollout got, and how long it waited for it."""

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import gymtrain_tracing as tracing
from gymtrain_tracing import otel
from tests.unit.broker.conftest import TOKEN, Start

HEADERS = {
    "Authorization": f"Bearer {TOKEN}",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Where spans go."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    exporter = InMemorySpanExporter()
    before = tracing.use(otel.to_exporter(exporter))
    yield exporter
    tracing.stop()
    tracing.use(before)


async def test_a_sandbox_of_a_rollout_that_is_traced_has_a_span(start: Start, memory: InMemorySpanExporter) -> None:
    bench = await start()
    body = {"image": "task:1"}
    async with bench.http.post(f"{bench.url}/v1/sandboxes?wait=5", json=body, headers=HEADERS) as answer:
        sandbox = await answer.json()
    assert answer.status == 201
    await bench.ask()  # of a rollout that isn't
    await asyncio.to_thread(tracing.stop)
    (span,) = memory.get_finished_spans()
    assert span.name == "POST /v1/sandboxes"
    told = dict(span.attributes or {})
    assert (told["http.response.status_code"], told["gymtrain.sandbox.state"]) == (201, "Running")
    assert told["gymtrain.sandbox.pod"] == sandbox["podName"]
    assert told["gymtrain.sandbox.found"] == "none"
    assert {"gymtrain.sandbox.queued_s", "gymtrain.sandbox.start_s"} <= told.keys()
    assert TOKEN not in str(told)


async def test_who_has_no_token_leaves_no_span(start: Start, memory: InMemorySpanExporter) -> None:
    bench = await start()
    headers = HEADERS | {"Authorization": "Bearer guessed"}
    async with bench.http.post(f"{bench.url}/v1/sandboxes", json={"image": "task:1"}, headers=headers) as answer:
        assert answer.status == 401
    await asyncio.to_thread(tracing.stop)
    assert not memory.get_finished_spans()
