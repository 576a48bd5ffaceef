"""Are the token prefixes of conversations exact? Prints a report as JSON; exits with 1 if one was silently wrong.

python -m tests.exactness --url http://GATEWAY:8000 --ledger http://POD:8000 --conversations 200 --turns 6
python -m tests.exactness --url http://VLLM:8000 --stock        # the same without the gateway, for comparison
"""

import argparse
import asyncio
import json
import sys

import aiohttp

from tests.exactness.check import Report, run
from tests.exactness.conversations import Plan
from tests.exactness.model_server import ModelServer


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.exactness", description=__doc__)
    parser.add_argument("--url", required=True, help="the gateway, or a vLLM server with --stock; without /v1")
    parser.add_argument("--ledger", action="append", help="every gateway pod (default: --url)")
    parser.add_argument("--stock", action="store_true", help="no gateway: no ledger is asked")
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--tools", choices=["none", "auto", "required"], default="none")
    parser.add_argument("--reasoning", action="store_true", help="the server has a reasoning parser")
    parser.add_argument("--dialect", choices=["0.4", "main"], default="0.4", help="of NeMo Gym's model server")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--chat-template-kwargs", type=json.loads, help="as JSON")
    parser.add_argument("--concurrent", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=600, help="seconds of one call")
    return parser.parse_args()


async def _measure(options: argparse.Namespace) -> Report:
    plan = Plan(options.turns, options.tools, options.max_tokens, options.temperature, options.chat_template_kwargs)
    ledgers = [] if options.stock else options.ledger or [options.url]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=options.timeout)) as http:
        server = ModelServer(http, options.url.rstrip("/"), options.dialect, options.reasoning)
        return await run(server, ledgers, plan, options.conversations, options.concurrent)


def main() -> int:
    """Returns the exit code."""
    options = _options()
    report = asyncio.run(_measure(options))
    print(json.dumps(vars(report), indent=2))
    return 0 if report.passed or options.stock else 1


if __name__ == "__main__":
    sys.exit(main())
