"""How long a claim of a sandbox takes, and how many writes to the API server it costs.

    PYTHONPATH=broker python -m benchmarks.broker_claims
    PYTHONPATH=broker python -m benchmarks.broker_claims --broker URL --token-file TOKEN --image IMAGE

Without --broker, a broker with an API server, a kubelet and daemons that answer at once, all in this process: what is
measured is the broker's own part. With it, a broker on a cluster, whose run keeps a warm pool of the image.

Claims come at a fixed rate, whether earlier ones are answered or not, and are timed from the moment at which they
should have been sent. Each sandbox is held for a while and closed. Prints JSON.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from gymtrain_api.spec import Sandboxes
from gymtrain_broker.settings import Settings
from tests.support.broker import serving
from tests.support.fake_pods import FakeCluster

_TOKEN = "benchmark"  # noqa: S105  of a broker that lives as long as this process
_PATIENCE = 120.0
_WRITES = re.compile(r'gymtrain_broker_api_requests_total\{code="2\d\d",method="(POST|PATCH|DELETE)"\} ([0-9.e+]+)')


@dataclass
class Tally:
    """What happened at one rate."""

    seconds: list[float] = field(default_factory=list)
    warm: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    def fail(self, why: str) -> None:
        """A claim that got no sandbox."""
        self.failures[why] = self.failures.get(why, 0) + 1


class Client:
    """One broker, as an agent sees it."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str, image: str) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._image = image

    async def claim(self, due: float, hold: float, tally: Tally) -> None:
        """One claim, from `due` (time.perf_counter()) to its closing."""
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        url = f"{self._url}/v1/sandboxes"
        try:
            body = {"image": self._image}
            async with self._http.post(f"{url}?wait={_PATIENCE:.0f}", json=body, headers=self._headers) as answer:
                found = await answer.json()
                if answer.status != 201:
                    tally.fail(f"{answer.status} {found.get('reason') or found.get('error')}")
                    return
            tally.seconds.append(time.perf_counter() - due)
            tally.warm += bool(found["warm"])
            await asyncio.sleep(hold)
            async with self._http.delete(f"{url}/{found['id']}", headers=self._headers) as answer:
                await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            tally.fail(type(error).__name__)

    async def writes(self) -> float:
        """Writes to the API server that succeeded so far."""
        async with self._http.get(f"{self._url}/metrics") as answer:
            return sum(float(count) for _, count in _WRITES.findall(await answer.text()))

    async def ready(self) -> int:
        """Sandboxes that can be had at once."""
        async with self._http.get(f"{self._url}/metrics") as answer:
            found = re.search(r'gymtrain_broker_pods\{state="ready"\} ([0-9.]+)', await answer.text())
        return int(float(found[1])) if found else 0

    async def pool_is_full(self, pool: int) -> None:
        """Waits until so many are ready."""
        async with asyncio.timeout(600):
            while await self.ready() < pool:  # noqa: ASYNC110  the broker tells it nowhere else
                await asyncio.sleep(0.2)


async def at_rate(client: Client, rate: float, options: argparse.Namespace) -> dict[str, object]:
    """One rate for some time."""
    await client.pool_is_full(options.pool)
    count = max(options.least, round(rate * options.seconds))
    tally, before, began = Tally(), await client.writes(), time.perf_counter()
    await asyncio.gather(*(client.claim(began + number / rate, options.hold, tally) for number in range(count)))
    await client.pool_is_full(options.pool)  # the refill belongs to the claims
    writes = await client.writes() - before
    return {
        "claims_per_second": rate,
        "claims": count,
        "failures": tally.failures,
        "share_ready": round(tally.warm / count, 3),
        "milliseconds": {f"p{part}": _percentile(tally.seconds, part) for part in (50, 95, 99)},
        "broker_writes_per_claim": round(writes / count, 2),
    }


def _percentile(seconds: list[float], part: int) -> float | None:
    if not seconds:
        return None
    place = min(len(seconds) - 1, round(part / 100 * (len(seconds) - 1)))
    return round(sorted(seconds)[place] * 1000, 2)


@asynccontextmanager
async def broker_here(http: aiohttp.ClientSession, options: argparse.Namespace) -> AsyncIterator[str]:
    """A broker in this process, over a cluster that does all at once; its URL."""
    fake = await FakeCluster().start()
    pool = {"image": options.image, "replicas": options.pool, "reuse": options.reuse}
    spec = {"maxConcurrent": 65536, "warmPools": [pool]}
    config = Settings(
        run="bench",
        namespace="bench",
        uid="bench",
        spec=Sandboxes.model_validate(spec),
        run_token=_TOKEN,
        token_secret="bench-broker",  # noqa: S106 - a name
        daemon_port=fake.daemon_port,
    )
    try:
        async with serving(config, fake.url, http) as url:
            yield url
    finally:
        await fake.stop()


async def measure(options: argparse.Namespace) -> dict[str, object]:
    """All rates, one after another."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=_PATIENCE + 30)) as http:
        if options.broker:
            client = Client(http, options.broker, options.token, options.image)
            rates = [await at_rate(client, rate, options) for rate in options.rates]
            return {"where": options.broker, "rates": rates}
        async with broker_here(http, options) as url:
            client = Client(http, url, _TOKEN, options.image)
            rates = [await at_rate(client, rate, options) for rate in options.rates]
            return {"where": "this process", "rates": rates}


def main() -> int:
    """1 if a claim failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_claims", description=__doc__)
    parser.add_argument("--broker", default="", help="URL of a broker on a cluster")
    parser.add_argument("--token-file", default="", help="the run's token")
    parser.add_argument("--image", default="task:1", help="image of the warm pool")
    parser.add_argument("--pool", type=int, default=200, help="its size (spec.sandboxes.warmPools[].replicas)")
    parser.add_argument("--reuse", choices=["Never", "Restart"], default="Never", help="of the pool, without --broker")
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 20.0, 75.0], help="claims per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each rate")
    parser.add_argument("--least", type=int, default=20, help="claims of each rate")
    parser.add_argument("--hold", type=float, default=1.0, help="seconds until a sandbox is closed")
    options = parser.parse_args()
    if options.broker and not options.token_file:
        parser.error("--broker needs --token-file")
    options.token = Path(options.token_file).read_text().strip() if options.broker else _TOKEN
    report = asyncio.run(measure(options))
    print(json.dumps(report, indent=2))
    rates = report["rates"]
    assert isinstance(rates, list)
    return 1 if any(rate["failures"] for rate in rates) else 0


if __name__ == "__main__":
    sys.exit(main())
