"""The broker's routes, and the OpenAPI document that describes them."""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

import gymtrain_tracing as tracing
from gymtrain_api.sandboxes import (
    MAX_WAIT_SECONDS,
    REQUEST_BYTES,
    Announced,
    Announcement,
    Reason,
    Refusal,
    Sandbox,
    SandboxList,
    SandboxRequest,
    SandboxState,
)
from gymtrain_broker.control.broker import Broker
from gymtrain_broker.control.controller import Controller
from gymtrain_broker.errors import BadRequestError, CallError, QueueFullError, UnauthorizedError, UnavailableError
from gymtrain_broker.http.daemon_proxy import DaemonProxy
from gymtrain_broker.metrics import Metrics
from gymtrain_broker.policy.claims import Claim
from gymtrain_kube.objects import Object

logger = logging.getLogger(__name__)

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_OPEN = {"/healthz", "/readyz", "/metrics", "/openapi.json"}
_BODY_BYTES = 16 * 1024 * 1024  # of an announcement
_RETRY_SECONDS = "5"
_STATUS = {
    SandboxState.RUNNING: HTTPStatus.CREATED,
    SandboxState.QUEUED: HTTPStatus.ACCEPTED,
    SandboxState.STARTING: HTTPStatus.ACCEPTED,
    SandboxState.CLOSED: HTTPStatus.OK,
    SandboxState.FAILED: HTTPStatus.OK,
}
_FAILED_STATUS: dict[str, HTTPStatus] = {
    Reason.DEADLINE: HTTPStatus.GATEWAY_TIMEOUT,
    Reason.REJECTED: HTTPStatus.UNPROCESSABLE_ENTITY,
}
_MODELS: tuple[type[BaseModel], ...] = (SandboxRequest, Sandbox, SandboxList, Announcement, Announced, Refusal)
_ID: Object = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_WAIT: Object = {
    "name": "wait",
    "in": "query",
    "description": "Seconds to wait until it is neither Queued nor Starting.",
    "schema": {"type": "number", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "default": 0},
}


class Api:
    """Serves the routes of the broker."""

    def __init__(
        self, broker: Broker, controller: Controller, daemon_proxy: DaemonProxy, metrics: Metrics, run_token: str
    ) -> None:
        self._broker = broker
        self._controller = controller
        self._daemon_proxy = daemon_proxy
        self._metrics = metrics
        self._expected = f"Bearer {run_token}".encode()
        self._openapi = _document()

    def app(self) -> web.Application:
        """Returns the web application."""
        app = web.Application(client_max_size=_BODY_BYTES, middlewares=[self._guarded])
        app.add_routes(
            [
                web.post("/v1/sandboxes", self._create),
                web.get("/v1/sandboxes", self._list),
                web.get("/v1/sandboxes/{id}", self._show),
                web.delete("/v1/sandboxes/{id}", self._close),
                web.post("/v1/announce", self._announce),
                web.route("*", "/v1/sandboxes/{id}/daemon/{path:.*}", self._daemon_proxy.handle),
                web.get("/healthz", self._health),
                web.get("/readyz", self._readiness),
                web.get("/metrics", self._show_metrics),
                web.get("/openapi.json", self._show_openapi),
            ]
        )
        return app

    async def _create(self, request: web.Request) -> web.Response:
        wanted = await _read(request, SandboxRequest, REQUEST_BYTES)
        seconds = _wait_seconds(request)
        claim, new = await self._broker.ask(wanted)
        try:
            await self._controller.wait(claim, seconds)
        except asyncio.CancelledError:
            if new and wanted.key is None:
                # Its client has gone and never learned its name.
                await asyncio.shield(self._broker.close(claim.id))
            raise
        _note(claim)
        return _answer(self._broker.document(claim), _status(claim))

    async def _show(self, request: web.Request) -> web.Response:
        claim = self._broker.find(request.match_info["id"])
        await self._controller.wait(claim, _wait_seconds(request))
        _note(claim)
        return _answer(self._broker.document(claim))

    async def _list(self, request: web.Request) -> web.Response:
        return _answer(self._broker.listing())

    async def _close(self, request: web.Request) -> web.Response:
        await self._broker.close(request.match_info["id"])
        return web.Response(status=HTTPStatus.NO_CONTENT)

    async def _announce(self, request: web.Request) -> web.Response:
        return _answer(self._broker.announce(await _read(request, Announcement, _BODY_BYTES)))

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _readiness(self, request: web.Request) -> web.Response:
        why_not = self._controller.why_not_ready()
        if why_not:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=why_not)
        return web.Response(text="ready")

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), content_type="text/plain", charset="utf-8")

    async def _show_openapi(self, request: web.Request) -> web.Response:
        return web.json_response(self._openapi)

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.path in _OPEN:
                return await handler(request)
            self._authorize(request)
            with tracing.served(f"{request.method} {_route(request)}", request.headers) as span:
                answer = await handler(request)
                span.answered(answer.status)
                return answer
        except CallError as error:
            if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                logger.warning("%s %s: %d: %s", request.method, request.path, error.status, error)
            return _refused(error)
        except web.HTTPException as error:
            code = (error.reason or "").lower().replace(" ", "_")
            return _answer(Refusal(error=code, message=error.text or ""), error.status)

    def _authorize(self, request: web.Request) -> None:
        said = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(said, self._expected):
            raise UnauthorizedError("send the run's token: Authorization: Bearer TOKEN")


async def _read[Body: BaseModel](request: web.Request, kind: type[Body], most: int) -> Body:
    body = await request.read()
    if len(body) > most:
        raise BadRequestError(f"the body has {len(body)} bytes, more than {most}: the whole body is stored on the pod")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors())
        raise BadRequestError(f"{faults} (GET /openapi.json has all fields)") from error


def _route(request: web.Request) -> str:
    """The route's pattern: paths have names of sandboxes in them."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "other"


def _note(claim: Claim) -> None:
    """What the request's span tells of the sandbox."""
    if not tracing.on():
        return
    told: dict[str, tracing.Value] = {
        "gymtrain.sandbox.state": str(claim.state),
        "gymtrain.sandbox.reason": str(claim.reason),
        "gymtrain.sandbox.found": str(claim.found),
        "gymtrain.sandbox.pod": claim.pod,
    }
    if claim.leased_at is not None:
        told["gymtrain.sandbox.queued_s"] = claim.leased_at - claim.asked_at
        if claim.ready_at is not None:
            told["gymtrain.sandbox.start_s"] = claim.ready_at - claim.leased_at
    tracing.note(told)


def _wait_seconds(request: web.Request) -> float:
    text = request.query.get("wait", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise BadRequestError(f"wait={text}: must be a number of seconds from 0 to {MAX_WAIT_SECONDS:.0f}")
    return seconds


def _status(claim: Claim) -> HTTPStatus:
    if claim.state is SandboxState.FAILED:
        return _FAILED_STATUS.get(claim.reason, _STATUS[claim.state])
    return _STATUS[claim.state]


def _answer(body: BaseModel, status: int = HTTPStatus.OK) -> web.Response:
    text = body.model_dump_json(by_alias=True)
    return web.Response(text=text, status=status, content_type="application/json")


def _refused(error: CallError) -> web.Response:
    answer = _answer(Refusal(error=error.code, message=str(error)), error.status)
    if isinstance(error, QueueFullError | UnavailableError):
        answer.headers["Retry-After"] = _RETRY_SECONDS
    return answer


def _document() -> Object:
    """The routes in OpenAPI 3.1, made from the types."""
    _, schemas = models_json_schema(
        [(model, "serialization" if model in (Sandbox, SandboxList) else "validation") for model in _MODELS],
        ref_template="#/components/schemas/{model}",
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "gymtrain broker", "version": "v1", "description": "Sandboxes for the tasks of one run."},
        "security": [{"token": []}],
        "paths": _paths(),
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "The run's token."}},
        },
    }


def _paths() -> Object:
    failures: Object = {
        "400": _said("The request is malformed.", Refusal),
        "401": _said("The run's token is missing or wrong.", Refusal),
    }
    missing = {"404": _said("There is no such sandbox.", Refusal)}
    return {
        "/v1/sandboxes": {
            "post": {
                "operationId": "createSandbox",
                "summary": "Request a sandbox. The same key returns the same sandbox.",
                "parameters": [_WAIT],
                "requestBody": _body(SandboxRequest),
                "responses": {
                    "200": _said("It is already Closed or Failed. Reason and message say why.", Sandbox),
                    "201": _said("It runs.", Sandbox),
                    "202": _said("It is queued or starting: ask for it by its id.", Sandbox),
                    "409": _said("The key belongs to another image.", Refusal),
                    "422": _said("Waiting wouldn't help: the broker or the API server refused it.", Refusal, Sandbox),
                    "429": _said("Too many requests wait: ask again after Retry-After.", Refusal),
                    "503": _said("The API server can't be reached: ask again after Retry-After.", Refusal),
                    "504": _said("It failed: it didn't get its turn or didn't start in time.", Sandbox),
                    **failures,
                },
            },
            "get": {
                "operationId": "listSandboxes",
                "summary": "List the sandboxes that are not final.",
                "responses": {"200": _said("They.", SandboxList), **failures},
            },
        },
        "/v1/sandboxes/{id}": {
            "parameters": [_ID],
            "get": {
                "operationId": "getSandbox",
                "summary": "Read one sandbox. Final ones are kept for ten minutes.",
                "parameters": [_WAIT],
                "responses": {"200": _said("It.", Sandbox), **missing, **failures},
            },
            "delete": {
                "operationId": "closeSandbox",
                "summary": "Close a sandbox, or cancel a waiting request. Idempotent.",
                "responses": {
                    "204": {"description": "It is closed."},
                    "503": _said("Its pod could not be deleted yet: ask again, or leave it to the broker.", Refusal),
                    **failures,
                },
            },
        },
        "/v1/sandboxes/{id}/daemon/{path}": {
            "parameters": [_ID, {**_ID, "name": "path"}],
            **{
                method: {
                    "operationId": f"{method}Daemon",
                    "summary": "Forwarded to the sandbox's daemon, streamed.",
                    "responses": {
                        "default": {"description": "The daemon's answer."},
                        "409": _said("The sandbox doesn't run.", Refusal),
                        "502": _said("The daemon didn't answer.", Refusal),
                        **missing,
                        **failures,
                    },
                }
                for method in ("get", "put", "post", "delete")
            },
        },
        "/v1/announce": {
            "post": {
                "operationId": "announceTasks",
                "summary": "Announce the next tasks. Replaces the previous announcement.",
                "requestBody": _body(Announcement),
                "responses": {"200": _said("Noted.", Announced), **failures},
            }
        },
    } | {
        path: {"get": {"summary": summary, "security": [], "responses": {"200": {"description": summary}}}}
        for path, summary in {
            "/healthz": "The broker lives.",
            "/readyz": "It has a current view of the pods; otherwise 503 with the reason.",
            "/metrics": "Prometheus' text format.",
            "/openapi.json": "This document.",
        }.items()
    }


def _schema(*models: type[BaseModel]) -> Object:
    refs = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    return {"application/json": {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}}


def _said(description: str, *models: type[BaseModel]) -> Object:
    return {"description": description, "content": _schema(*models)}


def _body(model: type[BaseModel]) -> Object:
    return {"required": True, "content": _schema(model)}
