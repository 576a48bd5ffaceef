"""Spans of what a part does for a rollout (docs/tracing.md). Off unless the pod's environment names where to send them.

    tracing.start()                                   # once, as the process begins
    with tracing.root("rollout", {...}) as span:      # in the trainer: it alone decides which rollouts are traced
        with tracing.span("POST /run"):
            send(headers=tracing.headers())           # traceparent
    with tracing.served("POST /run", headers):        # in a server: goes on with the caller's trace
        tracing.note({"gymtrain.sandbox": "..."})     # on the span that is open
    tracing.stop()

Of a rollout that isn't traced, and everywhere without `start`, all of these do nothing, and OpenTelemetry isn't even
imported. What is open is known by a context variable: tasks and `asyncio.to_thread` take it along.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager

from gymtrain_tracing.spans import ENDPOINT, OFF, Attributes, Span, Tracer, Value

log = logging.getLogger(__name__)

STOP_SECONDS = 3.0  # for what has not been sent yet

_tracer: Tracer = OFF


def start() -> None:
    """Traces from now on, where the environment says where to (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT)."""
    if not os.environ.get(ENDPOINT):
        return
    try:
        from gymtrain_tracing import otel
    except ImportError as error:  # an image of someone's own
        log.warning("no traces are sent: this image lacks OpenTelemetry's SDK and OTLP exporter (%s)", error)
        return
    use(otel.from_environment())


def use(tracer: Tracer) -> Tracer:
    """Traces by `tracer` from now on; returns the one before."""
    global _tracer
    before, _tracer = _tracer, tracer
    return before


def stop() -> None:
    """Sends what is waiting, for at most STOP_SECONDS, and traces no more."""
    use(OFF).stop(STOP_SECONDS)


def on() -> bool:
    """Whether this process traces at all."""
    return _tracer is not OFF


def root(name: str, attributes: Attributes | None = None) -> AbstractContextManager[Span]:
    """A trace of its own while the block runs; or nothing, by the sampling rate."""
    return _tracer.root(name, attributes)


def served(name: str, headers: Mapping[str, str], attributes: Attributes | None = None) -> AbstractContextManager[Span]:
    """A request that is answered while the block runs, in the trace that its headers name; else nothing."""
    return _tracer.served(name, headers, attributes)


def span(name: str, attributes: Attributes | None = None) -> AbstractContextManager[Span]:
    """A part of what is open now, while the block runs."""
    return _tracer.span(name, attributes)


def sent(name: str, attributes: Attributes | None = None) -> AbstractContextManager[Span]:
    """A request to another server, while the block runs; `headers` within it names it as the caller."""
    return _tracer.span(name, attributes, sent=True)


def note(attributes: Attributes) -> None:
    """Adds to what is open now."""
    _tracer.note(attributes)


def headers() -> dict[str, str]:
    """Headers by which another server goes on with the trace (W3C: traceparent); none outside of one."""
    return _tracer.headers()


__all__ = [
    "ENDPOINT",
    "STOP_SECONDS",
    "Span",
    "Value",
    "headers",
    "note",
    "on",
    "root",
    "sent",
    "served",
    "span",
    "start",
    "stop",
    "use",
]
