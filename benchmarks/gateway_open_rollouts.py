"""Many rollouts open at once: is one lost, and what does an open one cost?

    python -m benchmarks.gateway_open_rollouts --open 16384

Gateway, a stand-in for vLLM, and the client are processes of their own. The stand-in answers nobody until all are open.
An open request is two connections of the gateway: where the kernel doesn't allow one process so many, several gateways
share them, as replicas do.
Prints JSON; exits with 1 if a request was lost.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack

import aiohttp

from benchmarks.gateway_process import environment, gateway, process, resident_kib, wait_for

_POD_PORT = 18080
_GATEWAY_PORT = 18081  # of the first gateway
_RESERVE = 512  # open files besides the connections


async def _call_all(urls: list[str], count: int, patience: float) -> dict[str, object]:
    """The client: all requests at once."""
    outcomes: Counter[str] = Counter()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=patience)) as http:

        async def one(number: int) -> None:
            body = {"model": "policy", "logprobs": True, "return_tokens_as_token_ids": True}
            messages = [{"role": "user", "content": f"question {number} " + "x" * 200}]
            try:
                async with http.post(urls[number % len(urls)], json={**body, "messages": messages}) as response:
                    await response.read()
                    outcomes[str(response.status)] += 1
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                outcomes[type(error).__name__] += 1

        began = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(count)))
        seconds = time.perf_counter() - began
    return {"outcomes": dict(outcomes), "seconds": round(seconds, 2)}


def _as_client(count: int, timeout: float, gateways: int) -> None:
    urls = [f"http://127.0.0.1:{_GATEWAY_PORT + number}/v1/chat/completions" for number in range(gateways)]
    print(json.dumps(asyncio.run(_call_all(urls, count, timeout))))


def _gateways(count: int) -> int:
    """How many processes it takes, with all open files that the kernel grants."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < count + _RESERVE:
        raise SystemExit(f"{count + _RESERVE} open files are needed, {hard} allowed: raise `ulimit -Hn`")
    return -(-2 * count // (hard - _RESERVE))


def measure(count: int, hold: float, timeout: float) -> dict[str, object]:
    """Starts all three and reports."""
    gateways = _gateways(count)
    stand_in = ("benchmarks.stand_in_vllm", "--port", str(_POD_PORT), "--expect", str(count), "--hold", str(hold))
    with process(*stand_in), ExitStack() as stack:
        wait_for(f"http://127.0.0.1:{_POD_PORT}/stats")
        share = -(-count // gateways)
        running = [
            stack.enter_context(
                gateway(_GATEWAY_PORT + number, _POD_PORT, rollouts=share, timeout_seconds=int(timeout))
            )
            for number in range(gateways)
        ]
        before = sum(resident_kib(one.pid) for one in running)
        arguments = ["--role", "client", "--open", str(count), "--timeout", str(timeout), "--gateways", str(gateways)]
        client = subprocess.run(
            [sys.executable, "-m", "benchmarks.gateway_open_rollouts", *arguments],
            env=environment(),
            stdout=subprocess.PIPE,
            check=True,
        )
        peak = sum(resident_kib(one.pid, "VmHWM") for one in running)
        with urllib.request.urlopen(f"http://127.0.0.1:{_POD_PORT}/stats", timeout=30) as response:
            open_at_once = json.loads(response.read())["peak"]
    found = json.loads(client.stdout)
    answered = found["outcomes"].get("200", 0)
    return {
        "requests": count,
        "gateways": gateways,
        "open_at_once": open_at_once,
        "answered": answered,
        "lost": count - answered,
        **found,
        "hold_seconds": hold,
        "gateway_resident_mib_before": round(before / 1024, 1),
        "gateway_resident_mib_peak": round(peak / 1024, 1),
        "gateway_kib_per_open_request": round((peak - before) / count, 1),
    }


def main() -> int:
    """1 if a request was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway_open_rollouts", description=__doc__)
    parser.add_argument("--open", type=int, default=16_384, help="requests at once")
    parser.add_argument("--hold", type=float, default=5.0, help="seconds that all stay open")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of one request")
    parser.add_argument("--gateways", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--role", choices=["all", "client"], default="all", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "client":
        _as_client(options.open, options.timeout, options.gateways)
        return 0
    report = measure(options.open, options.hold, options.timeout)
    print(json.dumps(report, indent=2))
    return 1 if report["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
