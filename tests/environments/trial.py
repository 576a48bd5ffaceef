"""One environment, tried: `python -m tests.environments.trial NAME [LOGS]`, in an environment with NeMo Gym.

Its config is resolved as preflight does it. Its servers are started by the launcher, one process each, as the pods of
a run would be, and a scripted policy stands for vLLM. Then its example rows are played as the trainer plays rows.
Prints the outcome as a line of JSON, last. The servers' logs and config go to the folder LOGS.
"""

import asyncio
import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gymtrain_gym.server import workspace
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import RolloutError
from gymtrain_trainer.rollouts.client import AgentSource
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from tests.environments.catalogue import FOLDER, Environment, environments
from tests.environments.outcome import Outcome, cause, note
from tests.environments.placeholders import PLACEHOLDER, resolved
from tests.environments.policy import AnyPolicy
from tests.support.gym_cluster import GymCluster

ROWS = 5
START_SECONDS = 900.0
ROW_SECONDS = 300.0

_LIMITS = RolloutLimits(max_concurrent=1, timeout_seconds=ROW_SECONDS, max_attempts=1)
_SAMPLING = Sampling(temperature=1.0, max_output_tokens=512)


async def tried(environment: Environment, logs: Path | None = None) -> Outcome:
    """The outcome; every failure is one."""
    if not environment.configs:
        return Outcome(
            environment.name, "", "fails", note="has no config file with an agent", others=environment.others
        )
    policy = AnyPolicy()
    await policy.start()
    try:
        return await _tried(environment, policy, logs)
    finally:
        await policy.stop()


async def _tried(environment: Environment, policy: AnyPolicy, logs: Path | None) -> Outcome:
    found = resolved(environment.configs, policy.base_url.removesuffix("/v1"))
    path, *beside = found.gym.config_paths
    base = Outcome(environment.name, path, "fails", beside=tuple(beside), keys=found.needs, others=environment.others)
    if found.findings:
        return _failed(base, "; ".join(found.findings), found.findings)
    agent, rows = _examples(environment, found.config)
    if not rows:
        return dataclasses.replace(base, note="has no example rows, or no agent that they are for")
    with tempfile.TemporaryDirectory(prefix="e-") as folder:  # short: Ray's sockets are below
        cluster = GymCluster(Path(folder), {"head_server": {}, "dry_run": False, **found.config})
        names = [info.name for info in found.servers]
        try:
            cluster.start(*names, **{str(entry["name"]): PLACEHOLDER for entry in found.gym.env})
            try:
                await cluster.ready(*names, seconds=START_SECONDS)
            except (AssertionError, TimeoutError) as error:
                text = str(error) or f"not ready after {START_SECONDS:g} s"
                return _failed(base, _last_line(text), [cluster.log(name) for name in names])
            return await _played(base, cluster, policy, agent, rows)
        finally:
            cluster.stop()
            if logs is not None:
                _keep(Path(folder), logs)


def _failed(base: Outcome, said: str, texts: Iterable[str]) -> Outcome:
    found = cause(texts)
    keys = tuple(dict.fromkeys([*base.keys, *found.keys]))
    return dataclasses.replace(base, verdict=found.verdict, packages=found.packages, keys=keys, note=note(said))


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), text)


def _keep(folder: Path, logs: Path) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    for file in [*folder.glob("*.log"), folder / "config.yaml"]:
        shutil.copy(file, logs)


def _examples(environment: Environment, config: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """An agent, and the rows that its config lists as examples, else those of the environment's folder."""
    agents = {
        name: next(iter(server["responses_api_agents"].values()))
        for name, server in config.items()
        if isinstance(server, dict) and "responses_api_agents" in server
    }
    default = str(FOLDER / environment.name / "data" / "example.jsonl")
    for name, settings in agents.items():
        listed = [data["jsonl_fpath"] for data in settings.get("datasets") or [] if data.get("type") == "example"]
        for path in listed:
            if rows := _rows(path):
                return name, rows
    return next(iter(agents), ""), _rows(default) if agents else []


def _rows(path: str) -> list[dict[str, Any]]:
    file = workspace.find(Path(path), workspace.roots())
    if file is None:
        return []
    with file.open() as lines:
        return [json.loads(line) for line, _ in zip(lines, range(ROWS), strict=False)]


async def _played(
    base: Outcome, cluster: GymCluster, policy: AnyPolicy, agent: str, rows: Sequence[dict[str, Any]]
) -> Outcome:
    errors, answered = [], 0
    async with AgentSource(_LIMITS, _SAMPLING) as source:
        for number, row in enumerate(rows):
            reference = row.get("agent_ref")
            name = reference.get("name") if isinstance(reference, dict) else None
            name = name if name in cluster.ports else agent
            try:
                await source.run(Task(number, name, cluster.url(name, ""), row))
            except RolloutError as error:
                errors.append(str(error))
            else:
                answered += 1
    base = dataclasses.replace(
        base,
        rows=(answered, len(rows)),
        tools=any(request.get("tools") for request in policy.requests),
        model_calls=len(policy.requests),
    )
    if not errors:
        return dataclasses.replace(base, verdict="runs")
    logs = [cluster.log(name) for name in cluster.ports if name != "head_server"]
    failed = _failed(base, errors[-1], [*errors, *logs])
    return dataclasses.replace(failed, verdict="needs keys") if failed.verdict == "fails" and base.keys else failed


def main() -> None:
    """Tries the environment that the command line names."""
    found = {environment.name: environment for environment in environments()}
    name, *logs = sys.argv[1:]
    outcome = asyncio.run(tried(found[name], Path(logs[0]) if logs else None))
    print(json.dumps(dataclasses.asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
