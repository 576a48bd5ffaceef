"""A stand-in for NeMo Gym's agent server: one model call through the gateway a rollout, then the reward.

python3 -m benchmarks.gpu.chain.agent GATEWAY_URL PORT SLOW
"""

import asyncio
import sys
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from benchmarks.gpu.chain.task import Tails, score

_SESSION = web.AppKey("session", ClientSession)


async def _run(request: web.Request, gateway: str, tails: Tails) -> web.Response:
    row = await request.json()
    params = row["responses_create_params"]
    body = {
        "model": "policy",
        "messages": params["input"],
        "max_tokens": params["max_output_tokens"],
        "temperature": params["temperature"],
        "top_p": params["top_p"],
        "logprobs": True,
        "return_tokens_as_token_ids": True,
    }
    async with request.app[_SESSION].post(f"{gateway}/v1/chat/completions", json=body) as response:
        answer = await response.json()
        if response.status != 200:
            return web.json_response(answer, status=response.status)
    message = answer["choices"][0]["message"]
    text = message.get("content") or ""
    await asyncio.sleep(tails.delay(row["number"]))
    item = {"type": "message", "content": text} | {
        name: message[name] for name in ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
    }
    body = {"reward": score(text, row["entry"]), "response": {"status": "completed", "output": [item]}}
    return web.json_response(body)


async def _serve(gateway: str, port: int, tails: Tails) -> None:
    async def run(request: web.Request) -> web.Response:
        return await _run(request, gateway, tails)

    async def ready(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application(client_max_size=1 << 26)
    async with ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=600)) as session:
        app[_SESSION] = session
        app.add_routes([web.post("/run", run), web.get("/", ready)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
        await asyncio.Event().wait()


def main() -> None:
    """Serves until it is killed."""
    gateway, port, slow = sys.argv[1:4]
    tails: Any = slow
    asyncio.run(_serve(gateway, int(port), Tails(tails)))


if __name__ == "__main__":
    main()
