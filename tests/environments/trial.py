"""One environment, tried: `python -m tests.environments.trial NAME`, in an environment with NeMo Gym.

Its config is resolved as preflight does it. Its servers are started by the launcher, one process each, as the pods of
a run would be, and a scripted policy stands for vLLM. Then its example rows are played as the trainer plays rows.
Prints the outcome as a line of JSON, last.
"""

import asyncio
import dataclasses
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from gymtrain_api.spec import Gym
from gymtrain_api.wiring import GymServerInfo
from gymtrain_gym.config import resolve, servers
from gymtrain_gym.config.findings import Findings
from gymtrain_gym.server import workspace
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import RolloutError
from gymtrain_trainer.rollouts.client import AgentSource
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling
from tests.environments.catalogue import FOLDER, Environment, environments
from tests.environments.outcome import Outcome, missing_packages, note, wants_network
from tests.environments.policy import AnyPolicy
from tests.support.gym_cluster import GymCluster, model_server

ROWS = 5
START_SECONDS = 300.0
ROW_SECONDS = 60.0
PASSES = 12  # of the resolver: each names one more value that it lacks

_LIMITS = RolloutLimits(max_concurrent=1, timeout_seconds=ROW_SECONDS, max_attempts=1)
_SAMPLING = Sampling(temperature=1.0, max_output_tokens=512)
_NO_VALUE = re.compile(r"has no value|Missing mandatory value")
_NO_KEY = re.compile(r"Interpolation key '([\w.]+)' not found")
_NO_MODEL = re.compile(r"refers to responses_api_models '([^']+)', which the config lacks")
_NO_VARIABLE = re.compile(r"needs the environment variable (\w+)")


async def tried(environment: Environment) -> Outcome:
    """The outcome; every failure is one."""
    if environment.config is None:
        return Outcome(
            environment.name, "", "fails", note="has no config file with an agent", others=environment.others
        )
    policy = AnyPolicy()
    await policy.start()
    try:
        return await _tried(environment, environment.config, policy)
    finally:
        await policy.stop()


async def _tried(environment: Environment, path: str, policy: AnyPolicy) -> Outcome:
    base = Outcome(environment.name, path, "fails", others=environment.others)
    gym, config, infos, findings = _resolved(path, policy.base_url.removesuffix("/v1"))
    keys = tuple(sorted([*_leaves(gym.overrides), *(str(entry["name"]) for entry in gym.env)]))
    base = dataclasses.replace(base, keys=keys)
    if findings:
        packages = missing_packages(findings)
        return dataclasses.replace(
            base, verdict="needs packages" if packages else "fails", packages=packages, note=note("; ".join(findings))
        )
    agent, rows = _examples(environment, config)
    if not rows:
        return dataclasses.replace(base, note="has no example rows, or no agent that they are for")
    with tempfile.TemporaryDirectory(prefix="e-") as folder:  # short: Ray's sockets are below
        cluster = GymCluster(Path(folder), {"head_server": {}, "dry_run": False, **config})
        names = [info.name for info in infos]
        try:
            cluster.start(*names, **{str(entry["name"]): "placeholder" for entry in gym.env})
            try:
                await cluster.ready(*names, seconds=START_SECONDS)
            except (AssertionError, TimeoutError) as error:
                return _not_started(base, cluster, names, error)
            return await _played(base, cluster, policy, agent, rows)
        finally:
            cluster.stop()


def _resolved(path: str, url: str) -> tuple[Gym, dict[str, Any], list[GymServerInfo], list[str]]:
    """The config, with placeholders for values that a user would have to give."""
    overrides: dict[str, Any] = {}
    variables: list[dict[str, str]] = []
    for _ in range(PASSES):
        gym = Gym(config_paths=[path], overrides=overrides, env=variables)
        findings = Findings()
        config = resolve.resolve(gym, url, findings)
        if config is not None:
            infos = servers.describe(config, gym, findings)
            return gym, _plain(config), infos, [f"{item.where}: {item.message}" for item in findings.items]
        before = json.dumps([overrides, variables])
        for item in findings.items:
            if _NO_VALUE.search(item.message):
                _set(overrides, item.where.removeprefix("config key "), url)
            for name in _NO_MODEL.findall(item.message):  # a judge, which another config file would bring
                overrides[name] = model_server(f"{url}/v1", return_token_id_information=False)
            for name in _NO_KEY.findall(item.message):
                _set(overrides, name, url)
            variables += [{"name": name, "value": "placeholder"} for name in _NO_VARIABLE.findall(item.message)]
        if json.dumps([overrides, variables]) == before:
            break
    return gym, {}, [], [f"{item.where}: {item.message}" for item in findings.items]


def _plain(config: Any) -> dict[str, Any]:
    found = OmegaConf.to_container(config)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def _set(overrides: dict[str, Any], path: str, url: str) -> None:
    """A placeholder at a path of keys: the policy's address where it names one, as a judge may be any model."""
    *parents, last = path.split(".")
    for key in parents:
        overrides = overrides.setdefault(key, {})
    overrides[last] = f"{url}/v1" if "url" in last else "placeholder"


def _leaves(overrides: Mapping[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in overrides.items():
        if isinstance(value, dict) and "responses_api_models" in value:
            found.append(f"model server {key}")
            continue
        found += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
    return found


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


def _not_started(base: Outcome, cluster: GymCluster, names: Sequence[str], error: BaseException) -> Outcome:
    logs = {name: cluster.log(name) for name in names}
    packages = missing_packages(logs.values())
    text = str(error) or f"not ready after {START_SECONDS:g} s"
    said = next((line for line in reversed(text.splitlines()) if line.strip()), text)
    if packages:
        return dataclasses.replace(base, verdict="needs packages", packages=packages, note=note(said))
    verdict = "needs network" if any(map(wants_network, logs.values())) else "fails"
    return dataclasses.replace(base, verdict=verdict, note=note(said))  # type: ignore[arg-type]


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
    if packages := missing_packages([*errors, *logs]):
        return dataclasses.replace(base, verdict="needs packages", packages=packages, note=note(errors[-1]))
    if any(map(wants_network, [*errors, *logs])):
        return dataclasses.replace(base, verdict="needs network", note=note(errors[-1]))
    return dataclasses.replace(base, verdict="needs keys" if base.keys else "fails", note=note(errors[-1]))


def main() -> None:
    """Tries the environment that the command line names."""
    found = {environment.name: environment for environment in environments()}
    outcome = asyncio.run(tried(found[sys.argv[1]]))
    print(json.dumps(dataclasses.asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
