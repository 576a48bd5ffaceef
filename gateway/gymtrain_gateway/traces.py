"""Passes the spans of the run's pods on to the collector, so that one place knows its address and its credentials.

```
trainer, Gym servers, vLLM, broker ── POST /v1/traces ──►┐
this gateway's own spans ────────────────────────────────┴► waiting (16 MiB) ── POST ──► collector
```

Gym servers run others' code and reach nothing but the run, so they neither need a way to the collector nor get its
credentials. What they send is marked as this run's here, whatever it says: a run can't speak for another.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import unquote

import aiohttp
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

import gymtrain_tracing as tracing
from gymtrain_gateway.errors import BadCallError
from gymtrain_tracing import otel

logger = logging.getLogger(__name__)

PROTOBUF = "application/x-protobuf"
MAX_BYTES = 4 << 20  # of one request: reading it holds up the calls; the SDK sends 512 spans at once
WAITING_BYTES = 16 << 20  # while the collector is away; beyond, the oldest are dropped
_POST_SECONDS = 10.0
_PAUSE_SECONDS = 1.0  # doubled at each try
_PAUSE_LIMIT_SECONDS = 30.0
_REFUSED = frozenset({400, 404, 405, 413, 415})  # of what will not be taken the next time either


@dataclass(frozen=True)
class Collector:
    """Where spans go.

    Attributes:
        url: with the path.
        headers: of each request, such as its credentials.
        resource: attributes that all spans get.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    resource: Mapping[str, str] = field(default_factory=dict)


class TraceRelay:
    """Takes spans at once, and sends them when it can. Lives in one event loop, but for `SpanExporter`'s methods."""

    def __init__(self, collector: Collector, http: aiohttp.ClientSession, most: int = WAITING_BYTES) -> None:
        """`most`: bytes that may wait."""
        self._collector = collector
        self._http = http
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._queue: deque[bytes] = deque()
        self.waiting = 0  # bytes
        self._more = asyncio.Event()
        self._idle = asyncio.Event()  # the opposite
        self._idle.set()
        self._away = False  # the collector, as far as the last try tells
        self.dropped = 0  # requests

    def take(self, body: bytes) -> None:
        """Takes an ExportTraceServiceRequest.

        Raises:
            BadCallError: it isn't one, or has more than MAX_BYTES.
        """
        if len(body) > MAX_BYTES:
            raise BadCallError(f"the body has {len(body)} bytes, and at most {MAX_BYTES} are taken")
        try:
            request = ExportTraceServiceRequest.FromString(body)
        except DecodeError as error:
            raise BadCallError(f"the body isn't an OTLP ExportTraceServiceRequest (protobuf): {error}") from error
        for spans in request.resource_spans:
            others = [one for one in spans.resource.attributes if one.key not in self._collector.resource]
            del spans.resource.attributes[:]
            spans.resource.attributes.extend(others)
            for key, value in self._collector.resource.items():
                spans.resource.attributes.append(KeyValue(key=key, value=AnyValue(string_value=value)))
        self._keep(request.SerializeToString())

    def exporter(self) -> SpanExporter:
        """Of this process' own spans."""
        return _OwnSpans(self._loop, self)

    async def run(self) -> None:
        """Sends until it is cancelled."""
        pause = _PAUSE_SECONDS
        while True:
            await self._more.wait()
            body = self._queue[0]
            failure = await self._send(body)
            if failure is None:
                self._forget(body)
                pause = _PAUSE_SECONDS
                continue
            await asyncio.sleep(pause)
            pause = min(_PAUSE_LIMIT_SECONDS, 2 * pause)

    async def flush(self, seconds: float) -> None:
        """Returns when nothing waits any more, or after so many seconds."""
        if not self._away:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()

    def _keep(self, body: bytes) -> None:
        self._queue.append(body)
        self.waiting += len(body)
        while self.waiting > self._most:
            self._forget(self._queue[0])
            self.dropped += 1
        if self._queue:
            self._more.set()
            self._idle.clear()

    def _forget(self, body: bytes) -> None:
        """It may have been dropped meanwhile."""
        if self._queue and self._queue[0] is body:
            self._queue.popleft()
            self.waiting -= len(body)
        if not self._queue:
            self._more.clear()
            self._idle.set()

    async def _send(self, body: bytes) -> str | None:
        """Why it could not be sent; None where that is done with, well or badly."""
        url, failure = self._collector.url, ""
        headers = {"Content-Type": PROTOBUF, **self._collector.headers}
        try:
            # A redirect would take the credentials elsewhere.
            async with self._http.post(
                url,
                data=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=_POST_SECONDS),
                allow_redirects=False,
            ) as response:
                if response.status < 300:
                    self._heard(None)
                    return None
                failure = f"it answered {response.status}"
                if response.status in _REFUSED:
                    self.dropped += 1
                    self._heard(f"{failure}: {(await response.text(errors='replace'))[:200]}")
                    return None
        except TimeoutError:
            failure = f"no answer within {_POST_SECONDS:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: no URL, or headers with a line break
            failure = str(error) or type(error).__name__
        self._heard(failure)
        return failure

    def _heard(self, failure: str | None) -> None:
        """Says once that the collector doesn't take spans, and once that it does again."""
        if failure is not None and not self._away:
            logger.warning(
                "traces can't be sent to %s (spec.tracing.endpoint): %s. Rollouts go on; up to %d MiB of spans wait",
                self._collector.url,
                failure,
                self._most >> 20,
            )
        elif failure is None and self._away:
            logger.info("traces are sent to %s again; %d requests were dropped", self._collector.url, self.dropped)
        self._away = failure is not None


class _OwnSpans(SpanExporter):
    """Hands spans to the relay, from the SDK's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, relay: TraceRelay) -> None:
        self._loop = loop
        self._relay = relay

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Never waits."""
        try:
            self._loop.call_soon_threadsafe(self._relay.take, encode_spans(spans).SerializeToString())
        except RuntimeError:  # the loop is closed: the gateway has ended
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS


@asynccontextmanager
async def relay(namespace: str, run: str, environment: Mapping[str, str] = os.environ) -> AsyncIterator[TraceRelay]:
    """Takes and sends spans while the block runs, this process' own among them, as the environment says."""
    collector = Collector(
        environment[tracing.ENDPOINT],
        _headers(environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")),
        {"k8s.namespace.name": namespace, "gymtrain.run": run},
    )
    # The collector may be outside of the cluster, behind its proxy.
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=True) as http:
        made = TraceRelay(collector, http)
        sending = asyncio.create_task(made.run())
        tracing.use(otel.to_exporter(made.exporter()))
        try:
            yield made
        finally:
            await asyncio.to_thread(tracing.stop)
            await made.flush(tracing.STOP_SECONDS)
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending


def _headers(text: str) -> dict[str, str]:
    """Of OTEL_EXPORTER_OTLP_HEADERS: name=value, by commas, values percent-encoded."""
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}
