"""A server ends whose workers wait for a trainer that has gone."""

import asyncio

import pytest

from gymtrain_vllm.server_exit import EndsAbandoned, Message, Receive, Send

PATIENCE = 0.05  # seconds
LONG = 20 * PATIENCE


class Server:
    """An application behind the middleware that takes its time over a call, and what became of it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.ended = False
        self.bodies: list[bytes] = []

    async def _app(self, scope: Message, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            self.bodies.append(message["body"])
            more = message.get("more_body", False)
        await asyncio.sleep(self._seconds)
        await send({"type": "http.response.start", "status": 200})

    def _end(self) -> None:
        self.ended = True

    async def call(self, path: str, *, leaves: bool) -> "Server":
        """A request of two parts, by a caller that leaves right after it or stays to the end."""
        messages = asyncio.Queue[Message]()
        messages.put_nowait({"type": "http.request", "body": b"a", "more_body": True})
        messages.put_nowait({"type": "http.request", "body": b"b"})
        if leaves:
            messages.put_nowait({"type": "http.disconnect"})

        async def send(message: Message) -> None:
            assert message["status"] == 200

        await EndsAbandoned(self._app, self._end, PATIENCE)({"type": "http", "path": path}, messages.get, send)
        return self


@pytest.mark.parametrize("path", ["/init_weight_transfer_engine", "/update_weights"])
async def test_it_ends_where_the_call_of_one_that_went_does_not(path: str) -> None:
    server = await Server(LONG).call(path, leaves=True)
    assert server.ended
    assert server.bodies == [b"a", b"b"]


@pytest.mark.parametrize(
    ("path", "seconds", "leaves"),
    [("/update_weights", LONG, False), ("/update_weights", 0.0, True), ("/v1/completions", LONG, True)],
)
async def test_it_goes_on_otherwise(path: str, seconds: float, leaves: bool) -> None:
    server = await Server(seconds).call(path, leaves=leaves)
    await asyncio.sleep(2 * PATIENCE)
    assert not server.ended
    assert server.bodies == [b"a", b"b"]
