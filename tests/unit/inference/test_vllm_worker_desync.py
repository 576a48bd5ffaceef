"""A server of several workers ends when one of them refused a call."""

import pytest

from gymtrain_vllm.server_exit import EndsOutOfStep, Message, Receive, Send


class Server:
    """An application behind the middleware, and what became of it."""

    def __init__(self, status: int | None) -> None:
        self._status = status  # None: it raises
        self.sent: list[Message] = []
        self.ended = False

    async def _app(self, scope: Message, receive: Receive, send: Send) -> None:
        if self._status is None:
            raise RuntimeError("Worker failed with error 'boom'")
        await send({"type": "http.response.start", "status": self._status})

    def _end(self) -> None:
        self.ended = True

    async def call(self, path: str, kind: str = "http") -> "Server":
        async def receive() -> Message:
            return {}

        async def send(message: Message) -> None:
            self.sent.append(message)

        await EndsOutOfStep(self._app, self._end)({"type": kind, "path": path}, receive, send)
        return self


@pytest.mark.parametrize("path", ["/start_weight_update", "/update_weights", "/finish_weight_update"])
async def test_a_refused_call_is_answered_and_then_ends_the_server(path: str) -> None:
    server = await Server(500).call(path)
    assert server.ended
    assert [message["status"] for message in server.sent] == [500]


async def test_an_error_that_nobody_caught_ends_it_too() -> None:
    server = Server(None)
    with pytest.raises(RuntimeError, match="boom"):
        await server.call("/init_weight_transfer_engine")
    assert server.ended


@pytest.mark.parametrize(("path", "status"), [("/update_weights", 200), ("/update_weights", 422), ("/health", 503)])
async def test_a_server_whose_workers_all_answered_goes_on(path: str, status: int) -> None:
    server = await Server(status).call(path)
    assert not server.ended
    assert [message["status"] for message in server.sent] == [status]


async def test_what_is_no_request_passes() -> None:
    server = await Server(200).call("", kind="lifespan")
    assert not server.ended
