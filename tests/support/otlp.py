"""A receiver of OpenTelemetry's traces: what a collector, Jaeger or Tempo has at port 4318.

In a pod, as a program, it needs an image with aiohttp and opentelemetry-proto, such as the gateway's, and writes each
span to its log: `python otlp.py`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status

type Value = str | bool | int | float


@dataclass(frozen=True)
class Received:
    """A span."""

    service: str
    name: str
    trace: str
    id: str
    parent: str  # empty: a root
    attributes: dict[str, Value]
    resource: dict[str, Value]
    failed: bool
    began: int  # nanoseconds since the epoch
    seconds: float


class Receiver:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.headers: list[dict[str, str]] = []  # of each request
        self.status = 200
        self.requests = 0
        self.url = ""

    async def until(self, met: Callable[[list[Received]], bool], seconds: float = 20) -> list[Received]:
        """Waits for spans; returns all."""
        try:
            async with asyncio.timeout(seconds):
                while not met(self.spans):  # noqa: ASYNC110 - exporters send when they like
                    await asyncio.sleep(0.05)
        except TimeoutError:
            came = sorted(f"{span.service}: {span.name}" for span in self.spans)
            raise AssertionError(f"not met by {len(came)} spans of {self.requests} requests: {came}") from None
        return self.spans

    async def take(self, request: web.Request) -> web.Response:
        """POST /v1/traces."""
        self.requests += 1
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.status == 200:
            self.spans += spans_of(await request.read())
        return web.Response(status=self.status, content_type="application/x-protobuf")


def spans_of(body: bytes) -> list[Received]:
    """The spans of an ExportTraceServiceRequest."""
    found: list[Received] = []
    for group in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _plain(group.resource.attributes)
        for span in (span for scope in group.scope_spans for span in scope.spans):
            found.append(
                Received(
                    service=str(resource.get("service.name", "")),
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    attributes=_plain(span.attributes),
                    resource=resource,
                    failed=span.status.code == Status.STATUS_CODE_ERROR,
                    began=span.start_time_unix_nano,
                    seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                )
            )
    return found


def tree(spans: list[Received]) -> list[str]:
    """The spans of one trace as lines, each below its parent and in order: `service: name`. A second root, or a span
    whose parent is missing, is an error."""
    children: dict[str, list[Received]] = {}
    known = {span.id for span in spans}
    for span in sorted(spans, key=lambda span: span.began):
        assert not span.parent or span.parent in known, f"the parent of {span.service}: {span.name} is missing"
        children.setdefault(span.parent, []).append(span)
    assert len({span.trace for span in spans}) == 1, "more than one trace"
    assert len(children.get("", [])) == 1, "not exactly one root"

    def lines(parent: str, depth: int) -> list[str]:
        return [
            line
            for span in children.get(parent, [])
            for line in ["  " * depth + f"{span.service}: {span.name}", *lines(span.id, depth + 1)]
        ]

    return lines("", 0)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver at `url`/v1/traces."""
    receiver = Receiver()
    from aiohttp.test_utils import TestServer

    app = web.Application()
    app.add_routes([web.post("/v1/traces", receiver.take)])
    server = TestServer(app, host="127.0.0.1")
    await server.start_server()
    receiver.url = f"http://127.0.0.1:{server.port}"
    try:
        yield receiver
    finally:
        await server.close()


async def _logged(request: web.Request) -> web.Response:
    for span in spans_of(await request.read()):
        print(json.dumps(asdict(span)), flush=True)
    return web.Response(content_type="application/x-protobuf")


def _plain(attributes: "Sequence[KeyValue]") -> dict[str, Value]:
    names = [one.key for one in attributes]
    assert len(names) == len(set(names)), f"an attribute twice: {names}"
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in attributes}


if __name__ == "__main__":
    program = web.Application()
    program.add_routes([web.post("/v1/traces", _logged)])
    web.run_app(program, port=4318, access_log=None, print=lambda *_: None)
