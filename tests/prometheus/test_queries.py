"""Every query of dashboards and alerts, asked of a real Prometheus that scraped the real parts."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from dev.dashboards.__main__ import FOLDER
from dev.settings import REPOSITORY
from tests.prometheus import parts
from tests.prometheus.test_rules import RULES
from tests.support.apiserver import free_port
from tests.support.fake_pods import FakeCluster
from tests.unit.broker.conftest import Start as StartBroker
from tests.unit.broker.conftest import backend as backend
from tests.unit.broker.conftest import cluster as cluster
from tests.unit.broker.conftest import start as start_broker
from tests.unit.gateway.conftest import Start as StartGateway
from tests.unit.gateway.conftest import start as start_gateway
from tests.unit.gateway.fake_vllm import FakeVLLM

pytestmark = pytest.mark.prometheus
__all__ = ["start_broker", "start_gateway"]

# What Grafana puts in for variables; for the interval, at least that of four scrapes.
_FILLED = {"$namespace": parts.NAMESPACE, "$run": parts.RUN, "$__rate_interval": "10s"}
_SCRAPE = "1s"
_START_SECONDS = 60.0
_ANSWER_SECONDS = 120.0
_STOP_SECONDS = 20.0


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int, http: aiohttp.ClientSession) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._http = http

    async def is_ready(self) -> bool:
        try:
            async with self._http.get(f"{self._url}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def get(self, path: str, **query: str) -> Any:
        async with self._http.get(f"{self._url}/api/v1/{path}", params=query) as answer:
            document = await answer.json()
            assert document["status"] == "success", document
            return document["data"]

    async def ask(self, query: str) -> list[Any]:
        """The series that a query finds now."""
        found: list[Any] = (await self.get("query", query=query))["result"]
        return found


@asynccontextmanager
async def _started(
    program: Path, folder: Path, targets: dict[str, tuple[int, dict[str, str]]]
) -> AsyncIterator[Prometheus]:
    """Prometheus with the chart's rules, which scrapes `targets`: port and labels by job."""
    config = {
        "global": {"scrape_interval": _SCRAPE, "evaluation_interval": _SCRAPE},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": job,
                "honor_labels": job == "operator",  # as in the chart's PodMonitor
                "static_configs": [{"targets": [f"127.0.0.1:{target}"], "labels": labels}],
            }
            for job, (target, labels) in targets.items()
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(program),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as http:
                running = Prometheus(port, http)
                async with asyncio.timeout(_START_SECONDS):
                    while not await running.is_ready():
                        assert process.returncode is None, (folder / "log").read_text()
                        await asyncio.sleep(0.1)
                yield running
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()


@pytest.fixture
async def scraping(
    prometheus: Path, tmp_path: Path, start_gateway: StartGateway, start_broker: StartBroker, cluster: FakeCluster
) -> AsyncIterator[Prometheus]:
    """Prometheus beside an operator, and a run's trainer, gateway and broker."""
    cluster.images["missing:1"] = ("ErrImagePull", "not found")
    async with AsyncExitStack() as stack:
        ports = {
            "operator": await stack.enter_async_context(parts.operator()),
            "trainer": stack.enter_context(parts.trainer()),
            "gateway": await stack.enter_async_context(parts.gateway(await start_gateway(FakeVLLM()))),
            "broker": await stack.enter_async_context(
                parts.broker(await start_broker(warmPools=[{"image": "missing:1"}]))
            ),
        }
        # The labels that the chart's PodMonitors give.
        of_run = {"namespace": parts.NAMESPACE, "run": parts.RUN}
        targets = {
            job: (port, {"pod": job} | ({} if job == "operator" else {**of_run, "role": job}))
            for job, port in ports.items()
        }
        yield await stack.enter_async_context(_started(prometheus, tmp_path, targets))


def _shown() -> Iterator[tuple[str, str]]:
    """Place and query of all that dashboards show."""
    for path in sorted(FOLDER.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.stem}: {panel['title']}", target["expr"]


def _chosen() -> Iterator[tuple[str, str, str]]:
    """Place, series and label of all variables of dashboards."""
    for path in sorted(FOLDER.glob("*.json")):
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
                assert found, variable
                yield f"{path.stem}: {variable['name']}", found[1], found[2]


def _filled(query: str) -> str:
    for name, value in _FILLED.items():
        query = query.replace(name, value)
    return query


async def _that_find_nothing(prometheus: Prometheus, queries: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those of the queries that have found no series when the time is over."""
    left = queries
    loop = asyncio.get_running_loop()
    end = loop.time() + _ANSWER_SECONDS
    while left and loop.time() < end:
        left = [(place, query) for place, query in left if not await prometheus.ask(_filled(query))]
        await asyncio.sleep(0.5)
    return left


async def test_queries_find_series_in_what_the_parts_say(scraping: Prometheus) -> None:
    shown = list(_shown())
    assert len(shown) > 50
    assert await _that_find_nothing(scraping, shown) == []

    for place, series, label in _chosen():
        values = await scraping.get(f"label/{label}/values", **{"match[]": _filled(series)})
        assert {"namespace": parts.NAMESPACE, "run": parts.RUN}[label] in values, place

    # An alert that is quiet finds nothing; but what it looks at is there.
    looked_at = [
        (rule["alert"], selector)
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
        for selector in re.findall(r"gymtrain_\w+", rule["expr"])
    ]
    assert await _that_find_nothing(scraping, looked_at) == []
    groups = (await scraping.get("rules"))["groups"]
    states = {rule["name"]: (rule["health"], rule.get("lastError")) for group in groups for rule in group["rules"]}
    assert {name for name, (health, _) in states.items() if health != "ok"} == set(), states
    alerts = {
        (alert["labels"]["alertname"], alert["labels"].get("run")) for alert in (await scraping.get("alerts"))["alerts"]
    }
    assert ("GymtrainRunFailed", "failed") in alerts


def _of_autoscaling() -> Iterator[tuple[str, str]]:
    """Place and query of what autoscalers ask, for the run of the parts."""
    (trigger,) = yaml.safe_load((REPOSITORY / "examples/autoscaling/keda.yaml").read_text())["spec"]["triggers"]
    yield "KEDA", trigger["metadata"]["query"].replace('namespace="lab"', f'namespace="{parts.NAMESPACE}"')
    page = (REPOSITORY / "docs" / "autoscaling.md").read_text()
    (rule,) = re.findall(r"^      metricsQuery: >-\n((?:        .*\n)+)", page, re.MULTILINE)
    matchers = f'namespace="{parts.NAMESPACE}",run="{parts.RUN}"'  # as prometheus-adapter fills them in
    yield "prometheus-adapter", " ".join(rule.split()).replace("<<.LabelMatchers>>", matchers)


async def test_autoscalers_ask_for_one_number_which_is_there(scraping: Prometheus) -> None:
    queries = list(_of_autoscaling())
    assert await _that_find_nothing(scraping, queries) == []
    for place, query in queries:
        assert len(await scraping.ask(query)) == 1, place  # KEDA takes no more
        assert await scraping.ask(query.replace(f'run="{parts.RUN}"', 'run="other"')) == [], place


async def test_a_runs_metrics_keep_their_own_namespace_beside_the_operators(scraping: Prometheus) -> None:
    query = [("", f'gymtrain_run_step{{namespace="{parts.NAMESPACE}",run="{parts.RUN}",pod="operator"}} == 3')]
    assert await _that_find_nothing(scraping, query) == []
