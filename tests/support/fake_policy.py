"""An OpenAI endpoint that answers as vLLM does where Gym looks: chat completions with log-probs and
token ids as "token_id:N", and /tokenize. Its answers come from a function of the messages."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

type Message = dict[str, Any]
type Reply = Callable[[list[Message]], Message]  # messages -> assistant message (content or tool_calls)


def _tokens(text: str) -> list[int]:
    return list(text.encode())


class FakePolicy:
    """Requests are kept in `requests`; `delay` seconds pass before each answer."""

    def __init__(self, reply: Reply, delay: float = 0.0) -> None:
        self.reply = reply
        self.delay = delay
        self.requests: list[dict[str, Any]] = []
        self.base_url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/tokenize", self._tokenize)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        port = self._runner.addresses[0][1]
        self.base_url = f"http://{host}:{port}/v1"

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        await asyncio.sleep(self.delay)
        message = {"role": "assistant", "content": None, **self.reply(body["messages"])}
        text = message["content"] or str(message.get("tool_calls"))
        ids = _tokens(text)
        content: list[dict[str, Any]] = [
            {"token": f"token_id:{i}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for i in ids
        ]
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
                        "message": message,
                        "logprobs": {"content": content} if body.get("logprobs") else None,
                    }
                ],
                "usage": {"prompt_tokens": 3, "completion_tokens": len(ids), "total_tokens": 3 + len(ids)},
            }
        )

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids = _tokens("".join(str(m.get("content") or m.get("tool_calls")) for m in body["messages"]))
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": 1000})
