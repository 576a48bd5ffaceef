"""Errors of a server carry its name."""

import json
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from gymtrain_gym.server.answers import MAX_ERROR_BYTES, NamedErrors
from gymtrain_trainer.rollouts.inner_error import inner_error

pytestmark = pytest.mark.gym


async def answered(body: Any, *, status: int = 500, path: str = "/verify", parts: int = 2) -> tuple[int, Any]:
    """What the server `math` answers whose code answers `body`."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        size = -(-len(text) // parts) or 1
        for start in range(0, len(text), size):
            part = text[start : start + size]
            await send({"type": "http.response.body", "body": part, "more_body": start + size < len(text)})

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    await NamedErrors(server, "math", "resources")({"type": "http", "path": path}, receive, send)
    got = b"".join(message.get("body", b"") for message in sent)
    assert dict(sent[0]["headers"])[b"content-length"] == str(len(got)).encode()
    return sent[0]["status"], got if isinstance(body, bytes) else json.loads(got)


async def test_an_error_says_whose_it_is() -> None:
    status, body = await answered("KeyError('a')")
    assert (status, body) == (500, "Hit an exception in math (resources server): KeyError('a')")
    read = inner_error(json.dumps(body))
    assert (str(read), read.server_kind) == ("math: KeyError('a')", "resources")


async def test_a_refusal_says_whose_it_is_and_keeps_its_status() -> None:
    detail = [{"loc": ["body", "id"], "msg": "Field required"}]
    answer = {"detail": [detail[0] | {"input": {"the": "whole row"}}]}
    status, body = await answered(answer, status=422)
    assert status == 422
    assert body == {"server": "math", "server_kind": "resources", "status": 422, "detail": detail}
    read = inner_error(json.dumps(body))
    assert (str(read), read.server_kind, read.status) == ("math: body.id: Field required", "resources", 422)


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("Hit an exception in SimpleAgent___sums calling an inner server: b'gone'", {}),
        ({"error": {"message": "vLLM's"}}, {}),
        (b"no JSON", {}),
        ({"detail": "x" * MAX_ERROR_BYTES}, {"parts": 8}),
        ({"detail": "x" * 2 * MAX_ERROR_BYTES}, {"parts": 8}),
        ("a tool's answer, which the model gets", {"path": "/search"}),
        ({"reward": 1.0, "detail": "of a reward"}, {"status": 200}),
    ],
)
async def test_what_is_not_this_servers_error_goes_out_as_it_is(body: Any, more: dict[str, Any]) -> None:
    assert (await answered(body, **more))[1] == body
