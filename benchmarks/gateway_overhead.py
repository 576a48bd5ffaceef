"""What the gateway costs: tokens per second and latency through it and without it, in turns, on the same vLLM.

    python -m benchmarks.gateway_overhead --gateway http://GATEWAY:8000 --direct http://VLLM:8000

Each round does as many requests on both sides, equally long, and none twice: whoever came second would find the prompts
in vLLM's prefix cache. Which side goes first changes with the round. Prints JSON.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Side:
    """One of the two, and what was measured of it."""

    name: str
    url: str
    rates: list[float] = field(default_factory=list)  # tokens per second of each round
    alone: list[float] = field(default_factory=list)  # seconds of requests that were alone

    async def ask(self, http: aiohttp.ClientSession, body: dict[str, Any]) -> int:
        """One request; its generated tokens."""
        async with http.post(self.url + "/v1/chat/completions", json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"{self.name}: {response.status}: {(await response.text())[:500]}")
            return int((await response.json())["usage"]["completion_tokens"])

    async def flood(self, http: aiohttp.ClientSession, bodies: list[dict[str, Any]], concurrent: int) -> None:
        """All requests, so many at once."""
        gate = asyncio.Semaphore(concurrent)

        async def one(body: dict[str, Any]) -> int:
            async with gate:
                return await self.ask(http, body)

        began = time.perf_counter()
        tokens = sum(await asyncio.gather(*map(one, bodies)))
        self.rates.append(tokens / (time.perf_counter() - began))


async def measure(options: argparse.Namespace) -> dict[str, object]:
    """Runs all rounds."""
    through, direct = Side("gateway", options.gateway.rstrip("/")), Side("direct", options.direct.rstrip("/"))

    numbers = iter(range(100_000, 1_000_000))

    def body(max_tokens: int) -> dict[str, Any]:
        text = f"Question {next(numbers)}: " + "what is three and five? " * options.prompt_repeats
        return {
            "model": options.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "temperature": 1.0,
            "ignore_eos": True,
            "logprobs": True,
            "top_logprobs": 0,
            "return_tokens_as_token_ids": True,
        }

    timeout = aiohttp.ClientTimeout(total=options.timeout)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
        for side in (through, direct):
            await side.flood(http, [body(options.max_tokens) for _ in range(8)], options.concurrent)
            side.rates.clear()
        for number in range(options.rounds):
            for side in (through, direct) if number % 2 else (direct, through):
                await side.flood(http, [body(options.max_tokens) for _ in range(options.requests)], options.concurrent)
        for number in range(options.alone):
            for side in (through, direct) if number % 2 else (direct, through):
                began = time.perf_counter()
                await side.ask(http, body(options.alone_tokens))
                side.alone.append(time.perf_counter() - began)
    shares = [a / b for a, b in zip(through.rates, direct.rates, strict=True)]
    rates = [statistics.median(side.rates) for side in (through, direct)]
    alone = [statistics.median(side.alone) * 1000 for side in (through, direct)]
    return {
        "rounds": options.rounds,
        "requests_a_round": options.requests,
        "concurrent": options.concurrent,
        "tokens_per_second": {"gateway": round(rates[0], 1), "direct": round(rates[1], 1)},
        "share_of_direct": round(statistics.median(shares), 4),
        "shares_of_rounds": [round(share, 3) for share in shares],
        "alone_median_ms": {"gateway": round(alone[0], 2), "direct": round(alone[1], 2)},
        "added_median_ms": round(alone[0] - alone[1], 2),
        "added_median_of_differences_ms": round(
            statistics.median((a - b) * 1000 for a, b in zip(through.alone, direct.alone, strict=True)), 2
        ),
    }


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway_overhead", description=__doc__)
    parser.add_argument("--gateway", required=True, help="URL without /v1")
    parser.add_argument("--direct", required=True, help="URL of the vLLM pod behind it, without /v1")
    parser.add_argument("--model", default="policy")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=64, help="of a round")
    parser.add_argument("--concurrent", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--alone", type=int, default=100, help="requests one after another, for the latency")
    parser.add_argument("--alone-tokens", type=int, default=16)
    parser.add_argument("--prompt-repeats", type=int, default=20)
    parser.add_argument("--timeout", type=float, default=300.0)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
