"""Stands in for a vLLM pod where a benchmark is about the gateway: no model, answers when told to.

    python -m benchmarks.stand_in_vllm --port 9000 --expect 16384 --hold 5

Generate calls are held until `--expect` of them are open at once, and `--hold` seconds more. GET /stats says how many
were.
"""

import argparse
import asyncio
import resource
from dataclasses import dataclass, field

from aiohttp import web

_TOKENS = list(range(100, 164))
_PATIENCE_SECONDS = 300.0


@dataclass
class StandIn:
    """The state of the pod."""

    expect: int
    hold: float
    waiting: int = 0
    peak: int = 0
    full: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        """Its routes."""
        app = web.Application(client_max_size=1 << 26)
        app.add_routes(
            [
                web.get("/weight_info", self._label),
                web.get("/is_paused", self._paused),
                web.get("/v1/models", self._models),
                web.get("/stats", self._stats),
                web.post("/v1/chat/completions/render", self._render),
                web.post("/inference/v1/generate", self._generate),
                web.post("/v1/chat/completions/derender", self._derender),
            ]
        )
        return app

    async def _label(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": "default"})

    async def _paused(self, request: web.Request) -> web.Response:
        return web.json_response({"is_paused": False})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": 32768}]})

    async def _stats(self, request: web.Request) -> web.Response:
        return web.json_response({"peak": self.peak})

    async def _render(self, request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"token_ids": _TOKENS, "sampling_params": {"max_tokens": 64}, "model": "policy"})

    async def _generate(self, request: web.Request) -> web.Response:
        await request.read()
        self.waiting += 1
        self.peak = max(self.peak, self.waiting)
        if self.waiting >= self.expect:
            self.full.set()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self.full.wait()
            await asyncio.sleep(self.hold)
        finally:
            self.waiting -= 1
        content = [{"token_id": one, "logprob": -0.5, "top_logprobs": []} for one in _TOKENS]
        choice = {"index": 0, "token_ids": _TOKENS, "finish_reason": "stop", "stop_reason": None}
        spans = [{"version": "default", "start": 0, "end": len(_TOKENS)}]
        return web.json_response(
            {"request_id": "r", "choices": [{**choice, "logprobs": {"content": content}, "weight_versions": spans}]}
        )

    async def _derender(self, request: web.Request) -> web.Response:
        await request.read()
        message = {"role": "assistant", "content": "x" * 64, "tool_calls": []}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return web.json_response({"id": "r", "object": "chat.completion", "model": "policy", "choices": [choice]})


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stand_in_vllm", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--expect", type=int, default=1)
    parser.add_argument("--hold", type=float, default=0.0)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))

    async def app() -> web.Application:
        return StandIn(options.expect, options.hold).app()

    web.run_app(app(), host="127.0.0.1", port=options.port, backlog=8192, print=None, access_log=None)


if __name__ == "__main__":
    main()
