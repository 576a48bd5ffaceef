"""Spans by OpenTelemetry's SDK, sent in the background. Imported only where a pod traces.

Its own environment variables configure it (docs/tracing.md). Spans wait in a queue of 2,048 (OTEL_BSP_MAX_QUEUE_SIZE);
what finds no room there is lost, so a collector that is away costs neither time nor memory.
"""

import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gymtrain_tracing.spans import ENDPOINT, NOTHING, Attributes, Span, Value

log = logging.getLogger(__name__)

_W3C = TraceContextTextMapPropagator()
_EXPORT_SECONDS = 5.0  # of one try to send a batch
_TEXT = 300  # characters of an error, or of an attribute


def from_environment() -> "OtelTracer":
    """Sends spans to OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, over HTTP."""
    logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.CRITICAL)  # it complains of each batch; see Told
    return to_exporter(OTLPSpanExporter(timeout=_EXPORT_SECONDS))


def to_exporter(exporter: SpanExporter) -> "OtelTracer":
    """Sends spans by `exporter`, from a thread of its own."""
    # The SDK's own hook would wait for half a minute at exit where the collector is away; see OtelTracer.stop.
    provider = TracerProvider(
        resource=Resource.create({"service.instance.id": f"{socket.gethostname()}-{os.getpid()}"}),
        span_limits=SpanLimits(max_attribute_length=_TEXT),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(Told(exporter)))
    return OtelTracer(provider)


class OtelTracer:
    """A `Tracer`."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("gymtrain")

    def root(self, name: str, attributes: Attributes | None) -> AbstractContextManager[Span]:
        """A trace of its own."""
        return self._opened(name, attributes, SpanKind.INTERNAL, context.Context())

    def served(
        self, name: str, headers: Mapping[str, str], attributes: Attributes | None
    ) -> AbstractContextManager[Span]:
        """A request of the trace that its headers name."""
        if "traceparent" not in headers:
            return NOTHING
        return self._opened(name, attributes, SpanKind.SERVER, _W3C.extract(headers))

    def span(self, name: str, attributes: Attributes | None, *, sent: bool = False) -> AbstractContextManager[Span]:
        """A part of what is open."""
        if not trace.get_current_span().is_recording():
            return NOTHING
        return self._opened(name, attributes, SpanKind.CLIENT if sent else SpanKind.INTERNAL, None)

    def note(self, attributes: Attributes) -> None:
        """Adds to what is open."""
        trace.get_current_span().set_attributes(dict(attributes))

    def headers(self) -> dict[str, str]:
        """The open span as a parent."""
        carrier: dict[str, str] = {}
        if trace.get_current_span().is_recording():
            _W3C.inject(carrier)
        return carrier

    def stop(self, seconds: float) -> None:
        """Sends what waits, for so long at most. The threads that still try then are daemons."""
        ending = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(seconds)

    def _opened(
        self, name: str, attributes: Attributes | None, kind: SpanKind, parent: context.Context | None
    ) -> AbstractContextManager[Span]:
        span = self._tracer.start_span(name, parent, kind, attributes)
        return _open(span) if span.is_recording() else NOTHING


@contextmanager
def _open(span: trace.Span) -> Iterator[Span]:
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield _Recorded(span)
    except BaseException as error:
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR, str(error)[:_TEXT]))
        raise
    finally:
        context.detach(token)
        span.end()


class _Recorded:
    """A `Span`."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Adds attributes."""
        self._span.set_attributes(dict(attributes))

    def fail(self, error: str) -> None:
        """Marks it as failed."""
        self._span.set_status(Status(StatusCode.ERROR, error[:_TEXT]))

    def answered(self, status: int) -> None:
        """Notes an HTTP status."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self.fail(f"answered {status}")


class Told(SpanExporter):
    """An exporter that says once that spans don't arrive, and once that they do again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._lost = 0  # spans since they arrived last

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends a batch; what can't be sent is lost."""
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            result = SpanExportResult.FAILURE
            log.debug("traces aren't sent", exc_info=error)
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                log.warning(
                    "traces can't be sent to %s; the work goes on, and spans are dropped until they can",
                    os.environ.get(ENDPOINT, "the gateway"),
                )
            self._lost += len(spans)
        elif self._lost:
            log.info("traces are sent again, after %d spans that were lost", self._lost)
            self._lost = 0
        return result

    def shutdown(self) -> None:
        """Ends the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing waits here."""
        return self._exporter.force_flush(timeout_millis)
