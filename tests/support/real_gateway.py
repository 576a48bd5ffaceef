"""The real gateway in front of a real vLLM."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import aiohttp
from aiohttp.test_utils import TestServer

from gymtrain_api.ledger import LedgerEntry, LedgerQuestion, token_digest
from gymtrain_gateway import settings
from gymtrain_gateway.app import CallDrain, Gateway
from gymtrain_gateway.pods import Pods
from gymtrain_gateway.upstream import Upstream, session
from tests.support.real_vllm import Server

# As Gym's model server asks for the tokens of a policy (nemo-gym 0.4, vllm_model/app.py).
TRAINED = {"logprobs": True, "top_logprobs": 0, "return_tokens_as_token_ids": True}


class Asked:
    """The gateway, and calls of it."""

    def __init__(self, gateway: Gateway, url: str, http: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self._url = url
        self._http = http

    async def chat(self, **more: Any) -> dict[str, Any]:
        """The message that answers."""
        question = {"role": "user", "content": "What is 3 + 5?"}
        body = {"model": "policy", "messages": [question], "max_completion_tokens": 24, **more}
        async with self._http.post(f"{self._url}/v1/chat/completions", json=body) as response:
            document = await response.json()
        assert response.status == 200, document
        message: dict[str, Any] = document["choices"][0]["message"]
        return message

    def entry(self, message: dict[str, Any]) -> LedgerEntry:
        """What the gateway noted of a call, by its answer."""
        digest = token_digest(message["prompt_token_ids"], message["generation_token_ids"])
        (entry,) = self.gateway.ledger.answer(LedgerQuestion(digests=[digest])).entries.values()
        return entry

    async def metrics(self) -> str:
        async with self._http.get(f"{self._url}/metrics") as response:
            return await response.text()


@asynccontextmanager
async def asking(server: Server, trainer: str | None = None, *, seconds: float = 30) -> AsyncIterator[Asked]:
    """The gateway as its pod starts it, but for addresses, once a pod may answer.

    Args:
        server: of the only pod.
        trainer: URL of one that says what the pods hold.
        seconds: deadline of the wait for the pod's weights.
    """
    read = settings.read(server.folder / "run.json")
    read = replace(read, pods_host="vllm", pods_port=server.port)

    async def find(host: str, port: int) -> list[str] | None:
        if host == "vllm":
            return [f"http://127.0.0.1:{server.port}"]
        return [trainer] if trainer else []

    http, probes, client = session(10), session(0), aiohttp.ClientSession()
    pods = Pods(read, probes, find)
    gateway = Gateway(read, pods, Upstream(http), CallDrain(0.01, 1.0))
    listening = TestServer(gateway.app(), host="127.0.0.1")
    await listening.start_server()
    watching = asyncio.create_task(pods.run())
    try:
        until = time.monotonic() + seconds
        while not pods.admissible():
            assert time.monotonic() < until, pods.reason()
            await asyncio.sleep(0.1)
        yield Asked(gateway, f"http://127.0.0.1:{listening.port}", client)
    finally:
        await client.close()
        await listening.close()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await http.close()
        await probes.close()
