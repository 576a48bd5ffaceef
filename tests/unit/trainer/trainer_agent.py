"""A Gym agent for tests: answers POST /run as the shape of nemo-gym 0.4 is, and misbehaves on demand."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

type Behaviour = Callable[[dict[str, Any], int], Awaitable[web.Response] | web.Response]


def good_answer(row: dict[str, Any], reward: float = 1.0, output: list[int] | None = None) -> web.Response:
    """One turn of two tokens."""
    tokens = [7, 8] if output is None else output
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "8"}],
        "prompt_token_ids": [1, 2, 3],
        "generation_token_ids": tokens,
        "generation_log_probs": [-0.1] * len(tokens),
    }
    return web.json_response({"reward": reward, "response": {"output": [item], "incomplete_details": None}})


def inner_server_died() -> web.Response:
    """What an agent says when a server behind it answered an error."""
    return web.Response(
        status=500, text=json.dumps("Hit an exception in SimpleAgent___adder calling an inner server: b'gone'")
    )


class Agent:
    """Serves one behaviour on a free port."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour: Behaviour = behaviour or (lambda row, number: good_answer(row))
        self.requests: list[dict[str, Any]] = []
        self.cookies: list[dict[str, str]] = []
        self.traceparents: list[str] = []
        self.most_at_once = 0
        self._at_once = 0
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> "Agent":
        app = web.Application()
        app.add_routes([web.post("/run", self._run), web.get("/", self._root)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert self._runner.addresses
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _root(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _run(self, request: web.Request) -> web.StreamResponse:
        row = await request.json()
        self.requests.append(row)
        self.cookies.append(dict(request.cookies))
        self.traceparents.append(request.headers.get("traceparent", ""))
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(0)
            answer = self.behaviour(row, len(self.requests))
            response = answer if isinstance(answer, web.Response) else await answer
            response.set_cookie("session", "x")
            return response
        finally:
            self._at_once -= 1


class AgentThread:
    """An agent in a thread of its own, as the trainer's thread blocks."""

    def __init__(self) -> None:
        self.agent = Agent()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.agent.__aenter__(), self._loop).result(10)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _end(self) -> None:
        """A loop that is closed with tasks in it complains of each."""
        await self.agent.__aexit__()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
