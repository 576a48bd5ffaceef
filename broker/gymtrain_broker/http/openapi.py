"""The OpenAPI document, made from the types."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gymtrain_api.sandboxes import (
    MAX_WAIT_SECONDS,
    Announced,
    Announcement,
    Refusal,
    Sandbox,
    SandboxList,
    SandboxRequest,
)

type Object = dict[str, Any]

_MODELS: tuple[type[BaseModel], ...] = (SandboxRequest, Sandbox, SandboxList, Announcement, Announced, Refusal)
_ID: Object = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
_WAIT: Object = {
    "name": "wait",
    "in": "query",
    "description": "Seconds to wait until it is neither Queued nor Starting.",
    "schema": {"type": "number", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "default": 0},
}


def document() -> Object:
    """OpenAPI 3.1."""
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
                "summary": "Ask for a sandbox; with the same key it is the same one.",
                "parameters": [_WAIT],
                "requestBody": _body(SandboxRequest),
                "responses": {
                    "200": _said("It is Closed or Failed already; reason and message say why.", Sandbox),
                    "201": _said("It runs.", Sandbox),
                    "202": _said("It is queued or being started: ask for it by its id.", Sandbox),
                    "409": _said("The key belongs to another image.", Refusal),
                    "422": _said("No wait would help: refused by the broker, or by the API server.", Refusal, Sandbox),
                    "429": _said("Too many requests wait: ask again after Retry-After.", Refusal),
                    "503": _said("The API server is out of reach: ask again after Retry-After.", Refusal),
                    "504": _said("It failed: no turn, or not running, in time.", Sandbox),
                    **failures,
                },
            },
            "get": {
                "operationId": "listSandboxes",
                "summary": "All sandboxes that are not final.",
                "responses": {"200": _said("They.", SandboxList), **failures},
            },
        },
        "/v1/sandboxes/{id}": {
            "parameters": [_ID],
            "get": {
                "operationId": "getSandbox",
                "summary": "One sandbox; final ones are remembered for ten minutes.",
                "parameters": [_WAIT],
                "responses": {"200": _said("It.", Sandbox), **missing, **failures},
            },
            "delete": {
                "operationId": "closeSandbox",
                "summary": "Close a sandbox, or give up a request that waits. Idempotent.",
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
                    "summary": "Passed on to the sandbox's daemon, streamed.",
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
                "summary": "Say which tasks come next; replaces what was said before.",
                "requestBody": _body(Announcement),
                "responses": {"200": _said("Noted.", Announced), **failures},
            }
        },
    } | {
        path: {"get": {"summary": summary, "security": [], "responses": {"200": {"description": summary}}}}
        for path, summary in {
            "/healthz": "The broker lives.",
            "/readyz": "It has a current picture of the pods; 503 with the reason where not.",
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
