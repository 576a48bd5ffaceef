"""Gateway pods for tests: their ledgers alone."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from aiohttp import web

from gymtrain_api.ledger import LEDGER_PATH, LedgerAnswer, LedgerEntry, LedgerQuestion
from gymtrain_api.wiring import GATEWAY_PORT

_PID = os.getpid()
GATEWAYS = f"127.{1 + (_PID >> 16) % 126}.{_PID >> 8 & 255}.{_PID & 255}"
"""An address that other processes of the same tests don't use: the trainer asks all gateways at one port."""


class Gateway:
    """One gateway pod."""

    def __init__(self, entries: dict[str, LedgerEntry] | None = None) -> None:
        self.entries = entries or {}
        self.questions: list[LedgerQuestion] = []
        self.status = 200
        self.forgotten = 0
        self.age: float | None = 1e6
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        question = LedgerQuestion.model_validate_json(await request.read())
        self.questions.append(question)
        found = {digest: self.entries[digest] for digest in question.digests if digest in self.entries}
        answer = LedgerAnswer(entries=found, forgotten=self.forgotten, age_seconds=self.age)
        return web.json_response(text=answer.model_dump_json(), status=self.status)


@asynccontextmanager
async def serving(*gateways: Gateway) -> AsyncIterator[list[str]]:
    """The pods as DNS knows them; tests may change the list."""
    async with AsyncExitStack() as stack:
        pods = []
        for gateway in gateways:
            await stack.enter_async_context(_listening(gateway, "127.0.0.1", 0))
            pods.append(gateway.url)
        yield pods


def at_its_place(gateway: Gateway) -> AbstractAsyncContextManager[None]:
    """Serves it where a trainer looks for gateways whose host is GATEWAYS."""
    return _listening(gateway, GATEWAYS, GATEWAY_PORT)


@asynccontextmanager
async def _listening(gateway: Gateway, host: str, port: int) -> AsyncIterator[None]:
    app = web.Application()
    app.add_routes([web.post(LEDGER_PATH, gateway.answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    gateway.url = f"http://{host}:{runner.addresses[0][1]}"
    try:
        yield
    finally:
        await runner.cleanup()


def entry(*versions: str, history: str = "first", finish: str | None = "stop", **more: object) -> LedgerEntry:
    """A model call."""
    return LedgerEntry.model_validate({"versions": versions, "history": history, "finish_reason": finish, **more})


def dns(pods: Sequence[str]) -> Callable[[str, int], Awaitable[list[str]]]:
    """Stands in for dns.pod_urls."""

    async def find(host: str, port: int) -> list[str]:
        return list(pods)

    return find
