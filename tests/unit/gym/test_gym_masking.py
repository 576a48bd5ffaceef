"""Answers of rollouts that lost their sandbox carry a mark, whatever the server made of the loss."""

import json
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from gymtrain_gym.sandbox import lost_sandboxes
from gymtrain_gym.server.answers import LossMask
from gymtrain_trainer.errors import AnswerError
from gymtrain_trainer.rollouts.answer import parse_answer

pytestmark = pytest.mark.gym

TURN = {"type": "message", "prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
ANSWER = {"reward": 0.0, "response": {"output": [TURN]}}


class GoneError(Exception):
    """Of a sandbox."""


async def answered(path: str, *, lose: bool, body: bytes | None = None, crash: bool = False) -> tuple[int, bytes]:
    """What a server answers that swallows the loss of a sandbox."""

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        text = json.dumps(ANSWER).encode() if body is None else body
        if lose:
            try:
                with lost_sandboxes.noted(GoneError):
                    raise GoneError("sandbox 7 is lost")
            except GoneError:
                pass
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 500 if crash else 200, "headers": headers})
        for part in (text[:5], text[5:]):
            await send({"type": "http.response.body", "body": part, "more_body": part == text[:5]})
        if crash:
            raise RuntimeError("logged by the server")

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    try:
        await LossMask(server)({"type": "http", "path": path}, receive, send)
    except RuntimeError:
        assert crash
    text = b"".join(message.get("body", b"") for message in sent)
    assert dict(sent[0]["headers"])[b"content-length"] == str(len(text)).encode()
    return sent[0]["status"], text


@pytest.mark.parametrize("path", ["/run", "/verify"])
async def test_a_reward_after_a_loss_is_no_measurement(path: str) -> None:
    status, text = await answered(path, lose=True)
    body: dict[str, Any] = json.loads(text)
    assert (status, body["failure_reason"]) == (200, "sandbox 7 is lost")
    with pytest.raises(AnswerError, match="isn't a measurement: sandbox 7 is lost"):
        parse_answer(body)


async def test_without_a_loss_the_answer_is_what_it_was() -> None:
    status, text = await answered("/run", lose=False)
    assert (status, json.loads(text)) == (200, ANSWER)
    assert parse_answer(json.loads(text)).reward == 0.0


async def test_other_routes_are_left_alone() -> None:
    assert json.loads((await answered("/v1/responses", lose=True))[1]) == ANSWER


async def test_an_answer_that_is_no_object_passes() -> None:
    assert (await answered("/run", lose=True, body=b"Internal Server Error"))[1] == b"Internal Server Error"


async def test_an_error_reaches_the_client_and_the_server() -> None:
    assert (await answered("/run", lose=False, crash=True))[0] == 500
