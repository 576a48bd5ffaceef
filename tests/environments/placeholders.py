"""The config of an environment, with placeholders for what a user would have to give.

Preflight says what a config lacks. Each of its findings that a placeholder mends gets one, and preflight is asked
again. A model that judges is played by the policy: one that the config lacks, one at an address outside, or one that
would need a GPU in a Gym pod.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gymtrain_api.spec import Gym
from gymtrain_api.wiring import Finding, GymServerInfo
from gymtrain_gym.config import resolve, servers
from gymtrain_gym.config.findings import Findings
from gymtrain_gym.server import workspace
from tests.environments.catalogue import FOLDER
from tests.support.gym_cluster import model_server

PASSES = 12  # of the resolver: each names one more value that it lacks
PLACEHOLDER = "placeholder"

_NO_VALUE = re.compile(r"has no value|Missing mandatory value")
_NO_KEY = re.compile(r"Interpolation key '([\w.]+)' not found")
_NO_MODEL = re.compile(r"refers to responses_api_models '([^']+)', which the config lacks")
_NO_RESOURCES = re.compile(r"refers to resources_servers '([^']+)', which the config lacks")
_NO_VARIABLE = re.compile(r"needs the environment variable (\w+)")
_NO_VLLM = re.compile(r"needs the Python packages .*\bvllm\b")
_NO_POLICY = re.compile(r"never calls the policy")


@dataclass(frozen=True)
class Resolved:
    """What preflight makes of a config.

    Attributes:
        gym: what a run's spec.gym would be.
        config: resolved, as plain dicts; empty where it can't be resolved.
        servers: of the config.
        findings: that no placeholder mends.
        needs: settings that got placeholders, and models that the policy plays.
    """

    gym: Gym
    config: dict[str, Any]
    servers: list[GymServerInfo]
    findings: list[str]
    needs: tuple[str, ...]


@dataclass
class _Given:
    """What is given so far."""

    url: str
    paths: list[str]
    overrides: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)

    def state(self) -> str:
        return json.dumps([self.paths, self.overrides, self.variables])

    def gym(self) -> Gym:
        entries = [{"name": name, "value": value} for name, value in self.variables.items()]
        return Gym(config_paths=self.paths, overrides=self.overrides, env=entries)

    def needs(self) -> tuple[str, ...]:
        plain = {key: value for key, value in self.overrides.items() if key not in self.models}
        return tuple(sorted([*leaves(plain), *(f"model server {name}" for name in self.models), *self.variables]))


def resolved(paths: Sequence[str], url: str) -> Resolved:
    """The config of files below NeMo Gym's root, with the policy at `url` (http://HOST:PORT)."""
    given = _Given(url, [*paths])
    for _ in range(PASSES):
        gym, findings, infos = given.gym(), Findings(), list[GymServerInfo]()
        config = resolve.resolve(gym, url, findings)
        plain: dict[str, Any] = {}
        if config is not None:
            infos = servers.describe(config, gym, findings)
            plain = _plain(config)
        before = given.state()
        for finding in findings.items:
            _mend(finding, given, plain)
        for name, implementation in _outside_models(config, url) if config is not None else ():
            _play(name, implementation, given)
        if given.state() == before:
            break
    return Resolved(
        gym, plain, infos, [f"{finding.where}: {finding.message}" for finding in findings.items], given.needs()
    )


def _mend(finding: Finding, given: _Given, config: Mapping[str, Any]) -> None:
    key = finding.where.removeprefix("config key ")
    if _NO_VALUE.search(finding.message):
        give(given.overrides, key, given.url)
    for name in _NO_MODEL.findall(finding.message):  # a judge, which another config file would bring
        given.models.add(name)
        given.overrides[name] = model_server(f"{given.url}/v1", return_token_id_information=False)
    for name in _NO_RESOURCES.findall(finding.message):  # the file of that environment
        other = str(FOLDER / name / "configs" / f"{name}.yaml")
        if other not in given.paths and workspace.find(Path(other), workspace.roots()):
            given.paths.append(other)
    for name in _NO_KEY.findall(finding.message):
        give(given.overrides, name, given.url)
    for name in _NO_VARIABLE.findall(finding.message):
        given.variables[name] = PLACEHOLDER
    if _NO_VLLM.search(finding.message) and (models := config.get(key, {}).get("responses_api_models")):
        _play(key, next(iter(models)), given)
    if _NO_POLICY.search(finding.message):
        _train(key, config, given)


def _outside_models(config: Any, url: str) -> Iterator[tuple[str, str]]:
    """(server, implementation) of models at an address that isn't the policy's, or that a user has to give."""
    for name, server in config.items():
        models = server.get("responses_api_models") if isinstance(server, DictConfig) else None
        for implementation, settings in (models or {}).items():
            addresses = [OmegaConf.select(settings, key) for key in ("base_url", "openai_base_url") if key in settings]
            if any(address is None or _is_outside(str(address), url) for address in addresses):
                yield str(name), str(implementation)


def _is_outside(address: str, url: str) -> bool:
    return address.startswith("http") and not address.startswith(url)


def _play(name: str, implementation: str, given: _Given) -> None:
    """The policy plays a model of the config."""
    stand_in = model_server(f"{given.url}/v1", return_token_id_information=False)
    if implementation not in stand_in["responses_api_models"]:
        stand_in["responses_api_models"]["_delete_key"] = implementation  # upstream's own word for it
    given.models.add(name)
    given.overrides[name] = stand_in


def _train(agent: str, config: Mapping[str, Any], given: _Given) -> None:
    """The model of an agent is the policy under another name."""
    settings = next(iter(config[agent]["responses_api_agents"].values()))
    name = (settings.get("model_server") or {}).get("name")
    if name in given.models:
        given.overrides[name] = model_server(f"{given.url}/v1")


def _plain(config: Any) -> dict[str, Any]:
    found = OmegaConf.to_container(config)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def give(overrides: dict[str, Any], path: str, url: str) -> None:
    """A placeholder at a path of keys: the policy's address where it names one, as a judge may be any model."""
    *parents, last = path.split(".")
    for key in parents:
        overrides = overrides.setdefault(key, {})
    overrides[last] = f"{url}/v1" if "url" in last else PLACEHOLDER


def leaves(overrides: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Paths of the values in nested settings."""
    found = []
    for key, value in overrides.items():
        found += leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
    return found
