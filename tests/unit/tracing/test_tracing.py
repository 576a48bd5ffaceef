"""Spans without a collector: what is made, what is sent on, and what happens where tracing is off."""

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import gymtrain_tracing as tracing
from gymtrain_tracing import otel

SAMPLED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
LEFT_OUT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Where spans go; everything is sampled."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1")
    exporter = InMemorySpanExporter()
    before = tracing.use(otel.to_exporter(exporter))
    yield exporter
    tracing.stop()
    tracing.use(before)


def ended(memory: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """What has been sent, by name."""
    tracing.stop()
    return {span.name: span for span in memory.get_finished_spans()}


def test_without_an_endpoint_opentelemetry_is_not_imported_and_nothing_is_open() -> None:
    code = (
        "import sys, gymtrain_tracing as t; t.start()\n"
        "with t.root('a') as span, t.span('b'), t.served('c', {'traceparent': 'x'}), t.sent('d'):\n"
        "    span.set({'a': 1}); span.fail('no'); t.note({'b': 2}); assert t.headers() == {}\n"
        "t.stop(); assert not t.on()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)


def test_spans_are_parts_of_what_is_open(memory: InMemorySpanExporter) -> None:
    with tracing.root("rollout", {"gymtrain.agent": "sums"}), tracing.span("try"), tracing.sent("POST /run"):
        pass
    spans = ended(memory)
    assert spans["rollout"].parent is None
    assert spans["try"].parent == spans["rollout"].context
    assert spans["POST /run"].parent == spans["try"].context
    assert dict(spans["rollout"].attributes or {}) == {"gymtrain.agent": "sums"}


def test_a_root_is_one_even_inside_of_another(memory: InMemorySpanExporter) -> None:
    with tracing.root("one"), tracing.root("other"):
        pass
    spans = ended(memory)
    assert spans["other"].parent is None
    assert {span.context.trace_id for span in spans.values() if span.context} != {0}


async def test_tasks_take_the_open_span_along(memory: InMemorySpanExporter) -> None:
    async def work() -> None:
        with tracing.span("work"):
            await asyncio.sleep(0)

    with tracing.root("rollout"):
        await asyncio.gather(work(), asyncio.to_thread(lambda: tracing.span("thread").__enter__()))
    spans = ended(memory)
    assert spans["work"].parent == spans["rollout"].context


def test_a_server_goes_on_with_the_callers_trace(memory: InMemorySpanExporter) -> None:
    with tracing.served("POST /run", SAMPLED):
        assert tracing.headers()["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
        assert tracing.headers()["traceparent"] != SAMPLED["traceparent"]
    parent = ended(memory)["POST /run"].parent
    assert parent is not None
    assert f"{parent.span_id:x}" == "b7ad6b7169203331"


@pytest.mark.parametrize("headers", [{}, LEFT_OUT])
def test_a_request_outside_of_a_trace_is_none(memory: InMemorySpanExporter, headers: dict[str, str]) -> None:
    with tracing.served("POST /run", headers), tracing.span("part"):
        assert tracing.headers() == {}
    assert ended(memory) == {}


@pytest.mark.parametrize("header", ["", "nonsense", "00-0-0-01", "ff" * 500])
def test_a_broken_header_begins_no_trace(monkeypatch: pytest.MonkeyPatch, header: str) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")  # as all parts but the trainer have it
    exporter = InMemorySpanExporter()
    before = tracing.use(otel.to_exporter(exporter))
    with tracing.served("POST /run", {"traceparent": header}):
        assert tracing.headers() == {}
    assert ended(exporter) == {}
    tracing.use(before)


def test_of_a_rollout_that_is_not_sampled_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    exporter = InMemorySpanExporter()
    before = tracing.use(otel.to_exporter(exporter))
    with tracing.root("rollout"), tracing.span("try"):
        assert tracing.headers() == {}
    assert ended(exporter) == {}
    tracing.use(before)


def test_an_error_is_named_and_goes_on(memory: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="no"), tracing.root("rollout"):
        raise ValueError("no" * 1000)
    span = ended(memory)["rollout"]
    assert (span.status.is_ok, len(span.status.description or "")) == (False, 300)
    assert dict(span.attributes or {}) == {"error.type": "ValueError"}


def test_long_attributes_are_cut(memory: InMemorySpanExporter) -> None:
    with tracing.root("rollout", {"long": "x" * 1000}) as span:
        span.set({"longer": "y" * 10_000})
    assert {len(str(value)) for value in (ended(memory)["rollout"].attributes or {}).values()} == {300}


def test_the_exporters_own_complaints_about_each_batch_are_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(tracing.ENDPOINT, "http://127.0.0.1:9/v1/traces")
    monkeypatch.setattr(otel, "_EXPORT_SECONDS", 0.2)
    tracing.start()
    for _ in range(3):
        with tracing.root("rollout"):
            pass
    tracing.stop()
    assert [record.name for record in caplog.records] == [otel.__name__]


def test_an_image_without_opentelemetry_works_without_traces(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(tracing.ENDPOINT, "http://127.0.0.1:9/v1/traces")
    monkeypatch.setitem(sys.modules, "gymtrain_tracing.otel", None)
    monkeypatch.delattr(tracing, "otel")
    tracing.start()
    assert not tracing.on()
    assert "this image lacks OpenTelemetry" in caplog.text


class Away(SpanExporter):
    """A collector that hangs, then fails; until it is back."""

    def __init__(self) -> None:
        self.back = False
        self.took: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if not self.back:
            raise ConnectionError("nobody there")
        self.took += spans
        return SpanExportResult.SUCCESS


def test_that_spans_do_not_arrive_is_said_once_and_that_they_do_again_once(
    memory: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, otel.__name__)
    with tracing.root("rollout"):
        pass
    tracing.stop()
    spans, away = memory.get_finished_spans(), Away()
    told = otel.Told(away)
    for _ in range(3):
        assert told.export(spans) is SpanExportResult.FAILURE
    away.back = True
    for _ in range(2):
        assert told.export(spans) is SpanExportResult.SUCCESS
    said = [record.getMessage() for record in caplog.records if record.name == otel.__name__]
    assert [one.split(" to ")[0] for one in said] == [
        "traces can't be sent",
        "traces are sent again, after 3 spans that were lost",
    ]


class Hanging(SpanExporter):
    """A collector that never answers."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        time.sleep(60)
        return SpanExportResult.FAILURE


@pytest.mark.timeout(20)  # the SDK would wait for 30 s
def test_where_a_collector_hangs_spans_are_dropped_and_the_end_waits_no_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "STOP_SECONDS", 0.05)
    before = tracing.use(tracer := otel.to_exporter(Hanging()))
    for _ in range(10_000):
        with tracing.root("rollout"):
            pass
    processor = tracer._provider._active_span_processor._span_processors[0]
    assert len(processor._batch_processor._queue) <= 2048  # type: ignore[attr-defined]
    tracing.stop()
    tracing.use(before)
