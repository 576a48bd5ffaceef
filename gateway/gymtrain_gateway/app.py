"""The gateway's routes, and its drain: it stops without dropping the calls that are open."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import web
from pydantic import ValidationError

import gymtrain_tracing as tracing
from gymtrain_api.ledger import LEDGER_PATH, LedgerQuestion
from gymtrain_gateway.calls import Calls
from gymtrain_gateway.chat import Chat
from gymtrain_gateway.dispatch import Dispatcher
from gymtrain_gateway.errors import BadCallError, CallError, NoPodError, RefusedError
from gymtrain_gateway.ledger import Ledger
from gymtrain_gateway.metrics import Metrics
from gymtrain_gateway.passthrough import VERSION_HEADER, Passthrough
from gymtrain_gateway.pods import Pods
from gymtrain_gateway.prompts import UsedPrompts
from gymtrain_gateway.sampling import Sampling
from gymtrain_gateway.settings import BODY_BYTES, PROMPT_TOKENS, Settings
from gymtrain_gateway.upstream import Deadline, Upstream

if TYPE_CHECKING:  # it imports OpenTelemetry, which a gateway without tracing doesn't need
    from gymtrain_gateway.traces import TraceRelay

logger = logging.getLogger(__name__)

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HISTORY_HEADER = "x-gymtrain-history"  # first, exact, forked
FORK_HEADER = "x-gymtrain-fork-reason"
_RETRY_SECONDS = "5"

MIN_DRAIN_SECONDS = 3.0  # endpoints of a Service follow a pod's deletion with a delay
MAX_DRAIN_SECONDS = 25.0  # below Kubernetes' default terminationGracePeriodSeconds of 30

_TRACES_PATH = "/v1/traces"  # OTLP's own
_OWN = ("/health", "/ready", "/metrics", "/gymtrain/pods", LEDGER_PATH, _TRACES_PATH)  # not the clients' model calls


class CallDrain:
    """The calls that are open, and whether the server may stop."""

    def __init__(self, least: float = MIN_DRAIN_SECONDS, most: float = MAX_DRAIN_SECONDS) -> None:
        self._least = least
        self._most = most
        self._began = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.in_flight = 0

    @property
    def draining(self) -> bool:
        """Whether SIGTERM came."""
        return self._began.is_set()

    def begin(self) -> None:
        """SIGTERM came."""
        self._began.set()

    def call_started(self) -> None:
        """A call came."""
        self.in_flight += 1
        self._idle.clear()

    def call_ended(self) -> None:
        """A call was answered, or its client went away."""
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()

    async def wait(self) -> None:
        """Returns when the server may stop."""
        await self._began.wait()
        await asyncio.sleep(self._least)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._most - self._least):
                await self._idle.wait()


class Gateway:
    """One gateway pod."""

    def __init__(
        self,
        settings: Settings,
        pods: Pods,
        upstream: Upstream,
        drain: CallDrain,
        traces: "TraceRelay | None" = None,
    ) -> None:
        """`traces`: None where the run isn't traced."""
        self._traces = traces
        self._settings = settings
        self._pods = pods
        self._drain = drain
        self.metrics = Metrics()
        self.ledger = Ledger(settings.ledger)
        self._prompts = UsedPrompts(PROMPT_TOKENS)
        self._dispatcher = Dispatcher(pods, settings.max_in_flight)
        calls = Calls(pods, self._dispatcher, self.metrics)
        sampling = Sampling(settings.temperature, self.metrics, settings.evaluation_temperature)
        self._chat = Chat(calls, pods, upstream, self.ledger, self._prompts, self.metrics, sampling)
        self._passthrough = Passthrough(calls, pods, upstream, self._chat, self.ledger, sampling)
        self.metrics.watch(pods, self._dispatcher, self.ledger, self._prompts)

    def app(self) -> web.Application:
        """The web application."""
        app = web.Application(client_max_size=BODY_BYTES, middlewares=[self._measured])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat_completions),
                web.post("/v1/completions", self._completions),
                web.post("/v1/responses", self._pass_body),
                web.post("/tokenize", self._tokenize),
                web.post("/v1/tokenize", self._tokenize),
                web.get("/v1/models", self._pass),
                web.post(LEDGER_PATH, self._ask_ledger),
                web.get("/gymtrain/pods", self._show_pods),
                web.get("/metrics", self._show_metrics),
                web.get("/health", self._health),
                web.get("/ready", self._ready),
            ]
        )
        if self._traces is not None:
            app.add_routes([web.post(_TRACES_PATH, self._take_traces)])
        app.on_response_prepare.append(self._send_away)
        return app

    def _deadline(self) -> Deadline:
        return Deadline.after(self._settings.timeout_seconds)

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        answer = await self._chat.complete(await read_json(request), self._deadline())
        headers = {VERSION_HEADER: ",".join(answer.entry.versions), HISTORY_HEADER: answer.entry.history}
        if answer.fork_reason:
            headers[FORK_HEADER] = answer.fork_reason
        return web.json_response(answer.body, headers=headers)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._passthrough.completions(request, await read_json(request), self._deadline())

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        return await self._passthrough.tokenize(request, await read_json(request), self._deadline())

    async def _pass_body(self, request: web.Request) -> web.StreamResponse:
        return await self._passthrough.plain(request, await read_json(request), self._deadline())

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        return await self._passthrough.plain(request, None, self._deadline())

    async def _ask_ledger(self, request: web.Request) -> web.Response:
        try:
            question = LedgerQuestion.model_validate_json(await request.read())
        except ValidationError as error:
            raise BadCallError(f"the body isn't a ledger question: {error}") from error
        return web.json_response(text=self.ledger.answer(question).model_dump_json())

    async def _take_traces(self, request: web.Request) -> web.Response:
        assert self._traces is not None
        self._traces.take(await request.read())
        return web.Response(content_type="application/x-protobuf")  # an empty ExportTraceServiceResponse

    async def _show_pods(self, request: web.Request) -> web.Response:
        pods = {
            url: {
                "version": admission.version,
                "admissible": admission.admissible,
                "reason": admission.reason,
                "inFlight": self._dispatcher.in_flight.get(url, 0),
            }
            for url, admission in sorted(self._pods.admissions.items())
        }
        return web.json_response({"pods": pods, "queued": self._dispatcher.queued})

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        if self._drain.draining:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="draining")
        if not self._pods.admissible():
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=self._pods.reason())
        return web.Response(text="ready")

    @web.middleware
    async def _measured(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in _OWN:
            try:
                return await handler(request)
            except CallError as error:
                return refused(error)
        route = request.match_info.route.resource.canonical if request.match_info.route.resource else "other"
        status, began = 499, time.perf_counter()  # 499: the client went away
        self.metrics.open.inc()
        self._drain.call_started()
        try:
            with tracing.served(f"{request.method} {route}", request.headers) as span:
                answer = await self._answer(request, handler)
                span.answered(answer.status)
            status = answer.status
            return answer
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            self._drain.call_ended()
            self.metrics.open.dec()
            self.metrics.seconds.labels(route, str(status)).observe(time.perf_counter() - began)
            if status >= 400:
                self.metrics.refused.labels(str(status)).inc()

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except CallError as error:
            answer = refused(error)
            if answer.status >= 500:
                logger.warning("%s %s: %d: %s", request.method, request.path, answer.status, error)
            return answer

    async def _send_away(self, request: web.Request, response: web.StreamResponse) -> None:
        """Makes the client of a stopping gateway connect to another one."""
        if self._drain.draining:
            response.force_close()
            response.headers["Connection"] = "close"


async def read_json(request: web.Request) -> dict[str, Any]:
    """The body of a request.

    Raises:
        BadCallError: it isn't a JSON object.
    """
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise BadCallError(f"the body isn't JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadCallError("the body: expected a JSON object")
    return body


def refused(error: CallError) -> web.Response:
    """The answer that says why the call failed. vLLM's own refusals go through unchanged."""
    if isinstance(error, RefusedError):
        return web.Response(status=error.code, body=error.body, content_type=error.content_type)
    headers = {"Retry-After": _RETRY_SECONDS} if isinstance(error, NoPodError) else {}
    document = {"message": str(error), "type": error.kind, "param": None, "code": int(error.status)}
    return web.json_response({"error": document}, status=error.status, headers=headers)
