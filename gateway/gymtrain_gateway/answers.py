"""Requests as objects, and errors as OpenAI's clients know them."""

import json
from typing import Any

from aiohttp import web

from gymtrain_gateway.errors import BadCallError, CallError, NoPodError, RefusedError

VERSION_HEADER = "x-gymtrain-weight-version"  # that answered; several, oldest first, where it changed meanwhile
HISTORY_HEADER = "x-gymtrain-history"  # first, exact, forked
FORK_HEADER = "x-gymtrain-fork-reason"
_RETRY_SECONDS = "5"


async def read_json(request: web.Request) -> dict[str, Any]:
    """The body of a request.

    Raises:
        BadCallError: it is no JSON object.
    """
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise BadCallError(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadCallError("the body: expected a JSON object")
    return body


def refused(error: CallError) -> web.Response:
    """The answer that says why there is none. vLLM's own refusals go through unchanged."""
    if isinstance(error, RefusedError):
        return web.Response(status=error.code, body=error.body, content_type=error.content_type)
    headers = {"Retry-After": _RETRY_SECONDS} if isinstance(error, NoPodError) else {}
    document = {"message": str(error), "type": error.kind, "param": None, "code": int(error.status)}
    return web.json_response({"error": document}, status=error.status, headers=headers)
