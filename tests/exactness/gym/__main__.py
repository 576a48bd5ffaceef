"""Are the token prefixes exact where real NeMo Gym servers play real environments? Prints a table; exits with 1 if not.

    UV_PROJECT_ENVIRONMENT=.venv-gym $(dev/uv.sh) sync --python "$(dev/python.sh)" --locked --extra gym
    UV_PROJECT_ENVIRONMENT=.venv-inference $(dev/uv.sh) sync --python "$(dev/python.sh)" --locked --extra inference
    PYTHONPATH=gym python -m tests.exactness.gym \\
        --vllm-python .venv-inference/bin/python --gym-python .venv-gym/bin/python

Starts on this machine's loopback, for each chat template: a real vLLM on the CPU with a random model, the gateway in
front of it, and NeMo Gym's agents, resources servers and model servers through our launcher. Rows of
workplace_assistant and example_multi_step (their own data/example.jsonl, over and over, at temperature 1) are posted to
the agents' /run, side by side through the gateway and to vLLM itself. Each answer is read as the trainer reads it:
every later turn's prompt has to begin with all tokens of the turn before, or the gateway's ledger has to say that the
conversation forked.

How a model without skill comes to call real tools: each row carries a grammar (`metadata.extra_body`, which NeMo Gym's
model server passes on to vLLM as `structured_outputs`) that lets it answer by nothing but calls of the row's tools, in
the form that vLLM's hermes parser reads, after some thoughts where the template has reasoning. tool_choice stays
`auto`, so that the parser is at work. See tests/exactness/gym/grammar.py.

Templates: `hermes` (ChatML; tool parser hermes) and `qwen3` (as Qwen3's; tool parser hermes, reasoning parser qwen3;
with it also a model server that doesn't send reasoning back, whose conversations can't continue and have to be reported
as forks). Model servers: the release that is installed; with --gym-checkout FOLDER also all servers of that checkout.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.exactness.check import Report
from tests.exactness.gym.processes import (
    Pythons,
    Serving,
    StartError,
    Template,
    agent_name,
    build_model,
    gym_config,
    gym_servers,
    serving,
)
from tests.exactness.gym.report import Result, forks, problems, table
from tests.exactness.gym.rollouts import Player
from tests.exactness.gym.rows import ENVIRONMENTS, Rows, read
from tests.support.gym_cluster import GymCluster

TEMPLATES = {one.name: one for one in (Template("hermes", thinks=False), Template("qwen3", thinks=True))}
_FORGETTING_SHARE = 5  # of its conversations one in so many: each transition is the same fork
GATEWAY, STOCK, FORGETTING = "gateway", "stock", "forgetting"  # model servers
_ANSWERS_BY = {GATEWAY: "gateway", STOCK: "stock vLLM", FORGETTING: "gateway, reasoning not sent back"}


def _absolute(path: str) -> Path:
    """Links stay: an interpreter's own path is how it knows its environment."""
    return Path(path).absolute()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.exactness.gym", description=__doc__)
    parser.add_argument("--vllm-python", type=_absolute, required=True, help="interpreter with the extra inference")
    parser.add_argument("--gym-python", type=_absolute, required=True, help="interpreter with the extra gym")
    parser.add_argument("--gym-checkout", type=_absolute, help="a checkout of NeMo Gym whose servers are tried too")
    parser.add_argument("--template", action="append", choices=list(TEMPLATES), help="default: all")
    parser.add_argument("--environment", action="append", choices=ENVIRONMENTS, help="default: all")
    parser.add_argument("--conversations", type=int, default=50, help="of each line of the table but the forks'")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--concurrent", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=900, help="seconds of one conversation")
    parser.add_argument("--folder", type=Path, help="for logs and models, must not exist; default: a temporary one")
    return parser.parse_args()


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="exactness-") as name:
            yield Path(name)
    else:
        given.mkdir(parents=True)
        yield given.absolute()


def _models(servers: Serving, template: Template, checkout: bool) -> dict[str, dict[str, Any]]:
    """Settings of the model servers by name."""
    common: dict[str, Any] = {"uses_reasoning_parser": template.thinks}
    if checkout:
        common["request_prompt_and_generation_token_ids"] = True
    models = {
        GATEWAY: {**common, "base_url": f"{servers.gateway}/v1"},
        STOCK: {**common, "base_url": f"{servers.vllm}/v1"},
    }
    if template.thinks:
        models[FORGETTING] = {**models[GATEWAY], "uses_interleaved_reasoning": False}
    return models


@dataclass(frozen=True)
class _Round:
    """Servers that run."""

    template: Template
    source: str  # of NeMo Gym's servers
    serving: Serving
    cluster: GymCluster
    models: Collection[str]  # model servers

    async def play(self, rows: Mapping[str, Rows], options: argparse.Namespace) -> list[Result]:
        """Plays every environment with every model server; the gateway and stock vLLM at the same time."""
        results = []
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=options.timeout)) as http:
            for environment in rows:
                for group in ([GATEWAY, STOCK], [FORGETTING]):
                    models = [name for name in group if name in self.models]
                    before = await self._forks(http)
                    reports = await asyncio.gather(
                        *(self._report(http, environment, name, rows[environment], options) for name in models)
                    )
                    new = await self._forks(http) - before
                    for name, report in zip(models, reports, strict=True):
                        report.fork_reasons = Counter() if name == STOCK else new
                        results.append(self._result(environment, name, report))
                        print(" | ".join(results[-1].cells()), file=sys.stderr, flush=True)
        return results

    async def _report(
        self, http: aiohttp.ClientSession, environment: str, model: str, rows: Rows, options: argparse.Namespace
    ) -> Report:
        share = _FORGETTING_SHARE if model == FORGETTING else 1
        agent = self.cluster.url(agent_name(environment, model), "")
        player = Player(http, agent, None if model == STOCK else self.serving.gateway, self.template.thinks)
        return await player.play(rows, max(1, options.conversations // share), options.concurrent)

    async def _forks(self, http: aiohttp.ClientSession) -> Counter[str]:
        async with http.get(self.serving.gateway + "/metrics") as response:
            return forks(await response.text())

    def _result(self, environment: str, model: str, report: Report) -> Result:
        setting = (environment, self.template.name, self.template.parsers, self.source, _ANSWERS_BY[model])
        return Result(*setting, stock=model == STOCK, report=report)


def _measure(options: argparse.Namespace, folder: Path) -> list[Result]:
    sources = [("0.4", None)] + ([("main", options.gym_checkout)] if options.gym_checkout else [])
    installed = Pythons(options.vllm_python, options.gym_python)
    root = installed.gym_root()
    rows = {name: read(root, name) for name in options.environment or ENVIRONMENTS}
    model = build_model(installed, folder, [text for one in rows.values() for text in one.texts()])
    results: list[Result] = []
    for template in (TEMPLATES[name] for name in options.template or TEMPLATES):
        with serving(installed, folder / template.name, model, template) as servers:
            for source, checkout in sources:
                pythons = Pythons(options.vllm_python, options.gym_python, checkout)
                models = _models(servers, template, checkout=checkout is not None)
                config = gym_config(list(rows), models, options.turns)
                with gym_servers(pythons, folder / f"{template.name}-{source}", config) as cluster:
                    played = _Round(template, source, servers, cluster, models)
                    results += asyncio.run(played.play(rows, options))
    return results


def main() -> int:
    """Returns the exit code."""
    options = _options()
    try:
        with _folder(options.folder) as folder:
            results = _measure(options, folder)
    except (StartError, subprocess.SubprocessError) as error:
        sys.exit(f"exactness: {error}")
    print(table(results))
    for problem in problems(results):
        print(problem)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
