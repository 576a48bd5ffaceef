"""Many rollouts open at once: is one lost, and what does an open one cost?

    python -m benchmarks.gateway_open_rollouts --open 16384

Gateway, a stand-in for vLLM, and the client are processes of their own. The stand-in answers nobody until all are open.
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

import aiohttp

from benchmarks.gateway_process import environment, gateway, process, resident_kib, wait_for

_GATEWAY_PORT = 18080
_POD_PORT = 18081


async def _call_all(url: str, count: int, patience: float) -> dict[str, object]:
    """The client: all requests at once."""
    outcomes: Counter[str] = Counter()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=patience)) as http:

        async def one(number: int) -> None:
            body = {"model": "policy", "logprobs": True, "return_tokens_as_token_ids": True}
            messages = [{"role": "user", "content": f"question {number} " + "x" * 200}]
            try:
                async with http.post(url, json={**body, "messages": messages}) as response:
                    await response.read()
                    outcomes[str(response.status)] += 1
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                outcomes[type(error).__name__] += 1

        began = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(count)))
        seconds = time.perf_counter() - began
    return {"outcomes": dict(outcomes), "seconds": round(seconds, 2)}


def _as_client(count: int, timeout: float) -> None:
    url = f"http://127.0.0.1:{_GATEWAY_PORT}/v1/chat/completions"
    print(json.dumps(asyncio.run(_call_all(url, count, timeout))))


def _raise_files(needed: int) -> None:
    """For this process and all that it starts; above the hard limit only root may go."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(hard, needed)))
    except (ValueError, PermissionError) as error:
        raise SystemExit(f"{needed} open files are needed, {hard} allowed: raise `ulimit -Hn` ({error})") from error


def measure(count: int, hold: float, timeout: float) -> dict[str, object]:
    """Starts all three and reports."""
    stand_in = ("benchmarks.stand_in_vllm", "--port", str(_POD_PORT), "--expect", str(count), "--hold", str(hold))
    with process(*stand_in):
        wait_for(f"http://127.0.0.1:{_POD_PORT}/stats")
        with gateway(_GATEWAY_PORT, _POD_PORT, rollouts=count, timeout_seconds=int(timeout)) as running:
            before = resident_kib(running.pid)
            arguments = ["--role", "client", "--open", str(count), "--timeout", str(timeout)]
            client = subprocess.run(
                [sys.executable, "-m", "benchmarks.gateway_open_rollouts", *arguments],
                env=environment(),
                stdout=subprocess.PIPE,
                check=True,
            )
            peak = resident_kib(running.pid, "VmHWM")
            with urllib.request.urlopen(f"http://127.0.0.1:{_POD_PORT}/stats", timeout=30) as response:
                open_at_once = json.loads(response.read())["peak"]
    found = json.loads(client.stdout)
    answered = found["outcomes"].get("200", 0)
    return {
        "requests": count,
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
    parser.add_argument("--role", choices=["all", "client"], default="all", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "client":
        _as_client(options.open, options.timeout)
        return 0
    _raise_files(2 * options.open + 1024)
    report = measure(options.open, options.hold, options.timeout)
    print(json.dumps(report, indent=2))
    return 1 if report["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
