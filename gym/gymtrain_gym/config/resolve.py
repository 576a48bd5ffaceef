"""Resolving spec.gym with NeMo Gym's own config parser.

The config that comes out is the one `ng_run` would start its servers with, but for five things: secrets
(`${oc.env:NAME}`) and other interpolations stay as they are, hosts and ports are placeholders that the operator
replaces, keys that only upstream's CLI reads are left out, the policy's model servers are set up for training, and
agents that want sandboxes get the run's.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from nemo_gym.config_types import ConfigError, ServerInstanceConfig
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig, format_almost_server_warning
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from gymtrain_api.spec import Gym
from gymtrain_api.wiring import GYM_PORT, HEAD_SERVER, POLICY_MODEL_SERVER, SERVED_MODEL_NAME
from gymtrain_gym.config import sandboxes, variables
from gymtrain_gym.config.findings import Findings, nearest
from gymtrain_gym.config.server_config import KINDS, SERVER_TYPES
from gymtrain_gym.server import workspace

TRAINING_MODEL_CONFIG = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"
POLICY_KEYS = ("policy_base_url", "policy_model_name", "policy_api_key")
PLACEHOLDER_HOST = "127.0.0.1"
OVERRIDES = "spec.gym.overrides"
# Read by upstream's CLI only, and partly random or bound to the machine that resolves.
CLI_KEYS = (
    "config_paths",
    "disallowed_ports",
    "head_server_deps",
    "port_range_low",
    "port_range_high",
    "python_version",
    "skip_venv_if_present",
    "use_absolute_ip",
    "uv_cache_dir",
    "uv_venv_dir",
)


class _InvalidConfigError(Exception):
    """The parser stopped; what it found is in the findings."""


class _Parser(GlobalConfigDictParser):  # type: ignore[misc]  # nemo_gym is not installed where types are checked
    """Upstream's parser, which reports everything that is wrong instead of the first."""

    _findings: Findings

    def __init__(self, findings: Findings) -> None:
        super().__init__()
        self._findings = findings

    def load_extra_config_paths(self, config_paths: list[str]) -> tuple[list[str], list[DictConfig]]:
        """Upstream's, with the same roots for the files that a file names in its own `config_paths`.

        Upstream reads all of them in one call: so the named ones are looked at before, file by file.
        """
        roots, seen = workspace.roots(), set(config_paths)
        waiting = list(config_paths)
        while waiting:
            named = waiting.pop()
            if not workspace.is_inside(Path(named), roots):
                self._findings.add(f"config_paths of a config file, {named!r}", _outside(roots))
                raise _InvalidConfigError
            file = workspace.find(Path(named), roots)
            if file is None:
                continue  # upstream says where it looked
            try:
                inner = yaml.safe_load(file.read_bytes())
            except yaml.YAMLError:
                continue  # upstream says where it is broken
            more = inner.get("config_paths") if isinstance(inner, dict) else None
            fresh = [str(path) for path in more or [] if path not in seen]
            seen.update(fresh)
            waiting += fresh
        paths, configs = super().load_extra_config_paths(config_paths)
        return list(paths), list(configs)

    def raise_on_missing_values(self, global_config_dict: DictConfig) -> None:
        paths = self.collect_missing_value_paths(global_config_dict)
        for path in paths:
            self._findings.add(f"config key {path}", f"has no value (???): set it in {OVERRIDES}, as {path}")
        if paths:
            raise _InvalidConfigError

    def detect_and_report_almost_servers(self, global_config_dict: DictConfig) -> list[Any]:
        broken = super().detect_and_report_almost_servers(global_config_dict)
        if broken and global_config_dict.get("error_on_almost_servers", True):
            for name, error in broken:
                lines = [line.strip(" -") for line in format_almost_server_warning(name, error).splitlines()]
                details = "; ".join(re.sub(r"^.*?\] -> ", "", line) for line in lines if " -> " in line)
                self._findings.add(f"config key {name}", f"isn't a valid server: {details}")
            raise _InvalidConfigError
        return list(broken)

    def validate_and_populate_defaults(
        self, server_instance_configs: list[ServerInstanceConfig], *args: Any, **kwargs: Any
    ) -> list[int]:
        servers = {config.name: config.SERVER_TYPE for config in server_instance_configs}
        found = len(self._findings.items)
        for config in server_instance_configs:
            inner = config.get_inner_run_server_config_dict()
            for path, kind, name in server_references(OmegaConf.to_container(inner)):
                if servers.get(name) != kind:
                    hint = nearest(name, [n for n, k in servers.items() if k == kind])
                    self._findings.add(
                        f"config key {config.name}.{path}", f"refers to {kind} {name!r}, which the config lacks: {hint}"
                    )
        if len(self._findings.items) > found:
            raise _InvalidConfigError
        return list(super().validate_and_populate_defaults(server_instance_configs, *args, **kwargs))


def resolve(
    gym: Gym, gateway_url: str, findings: Findings, *, has_sandboxes: bool = False, root_sandboxes: bool = False
) -> DictConfig | None:
    """The resolved config, or None where it can't be resolved; `findings` then say why.

    Args:
        gym: spec.gym.
        gateway_url: http://HOST:PORT of the run's gateway, which the policy answers behind.
        findings: what is wrong is added here.
        has_sandboxes: the run has spec.sandboxes.
        root_sandboxes: and they run as root.
    """
    os.environ.setdefault("WANDB_MODE", "disabled")  # upstream's parser would log in where the config has keys
    variables.provide_placeholders(gym)
    parser = _Parser(findings)
    if not _paths_exist(gym.config_paths, findings):
        return None
    for key in POLICY_KEYS[:2]:
        if key in gym.overrides:
            findings.add(f"{OVERRIDES}.{key}", "is set by gymtrain to the run's own gateway: remove it")
    try:
        paths, extra = parser.load_extra_config_paths(list(gym.config_paths))
        overrides = OmegaConf.create(gym.overrides)
        base = OmegaConf.merge(*extra)
        _check_overrides(gym.overrides, OmegaConf.to_container(base), findings)
        if findings:
            return None
        merged = OmegaConf.merge(base, overrides)
        variables.check_variables(merged, gym, findings)
        if POLICY_MODEL_SERVER not in merged:
            paths = [*paths, TRAINING_MODEL_CONFIG]
        policy = {
            "policy_base_url": f"{gateway_url}/v1",
            "policy_model_name": SERVED_MODEL_NAME,
            "policy_api_key": "unused",  # the gateway asks for none
        }
        initial = OmegaConf.merge({"policy_api_key": policy["policy_api_key"]}, overrides, policy)
        initial["config_paths"] = paths
        config = parser.parse(
            GlobalConfigDictParserConfig(
                initial_global_config_dict=initial, skip_load_from_cli=True, skip_load_from_dotenv=True
            )
        )
    except _InvalidConfigError:
        return None
    except ConfigError as error:
        findings.add("spec.gym.configPaths", str(error))
        return None
    except OSError as error:
        findings.add("spec.gym.configPaths", f"{error.filename} can't be read: {error.strerror}")
        return None
    except InterpolationResolutionError as error:
        findings.add(f"config key {error.full_key}", f"does not resolve: {_one_line(error)}")
        return None
    except (OmegaConfBaseException, ValueError, TypeError, KeyError) as error:
        findings.add(OVERRIDES, f"don't merge over the config files: {_one_line(error)}")
        return None
    _check_override_names(gym.overrides, server_names(config), findings)
    _set_addresses(config)
    _set_up_policy(config, gym, f"{gateway_url}/v1", findings)
    sandboxes.set_up(config, provided=has_sandboxes, findings=findings)
    sandboxes.check_users(config, root=root_sandboxes, findings=findings)
    variables.check_resolves(config, findings)
    return None if findings else config


def server_names(config: DictConfig) -> list[str]:
    """Top-level keys that are servers, the head left out."""
    return [instance.name for instance in GlobalConfigDictParser().filter_for_server_instance_configs(config)]


def server_references(node: object, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, server type, server name) of every reference to another server in a server's settings."""
    if isinstance(node, dict):
        kind, name = node.get("type"), node.get("name")
        if set(node) == {"type", "name"} and kind in KINDS and isinstance(name, str):
            yield prefix, str(kind), name
        for key, value in node.items():
            yield from server_references(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(node, list):
        for position, value in enumerate(node):
            yield from server_references(value, f"{prefix}[{position}]")


def _paths_exist(paths: list[str], findings: Findings) -> bool:
    roots = workspace.roots()
    fine = True
    for position, path in enumerate(paths):
        where = f"spec.gym.configPaths[{position}]"
        if not workspace.is_inside(Path(path), roots):
            findings.add(where, f"{path!r} {_outside(roots)}")
        elif workspace.find(Path(path), roots) is None:
            findings.add(where, f"no config file {path!r} in the Gym image: {nearest(path, _config_files(roots))}")
        else:
            continue
        fine = False
    return fine


def _outside(roots: list[Path]) -> str:
    """Why a path is not read. Nothing of the file that it leads to, not even whether there is one, is said."""
    return (
        f"leads out of the folders for NeMo Gym's configs, {' and '.join(map(str, roots))}: put your "
        "environment's files into the first (gym/README.md), and name them relative to it"
    )


def _config_files(roots: list[Path]) -> list[str]:
    pattern = re.compile(r"\.ya?ml$")
    folders = (*KINDS, "benchmarks", "environments")
    return [
        str(file.relative_to(root))
        for root in roots
        for folder in folders
        for file in (root / folder).glob("**/*")
        if pattern.search(file.name)
    ]


def _check_overrides(overrides: Any, base: Any, findings: Findings, path: str = OVERRIDES) -> None:
    """Finds overrides whose shape doesn't fit: OmegaConf refuses them, or silently loses a whole server."""
    for key, value in overrides.items():
        if key not in base:
            continue
        here, there = f"{path}.{key}", base[key]
        if isinstance(there, dict) and isinstance(value, dict):
            _check_overrides(value, there, findings, here)
        elif value is None or _is_interpolation(value) or _is_interpolation(there):
            continue
        elif isinstance(there, dict) or (isinstance(there, list) and isinstance(value, dict)):
            findings.add(here, f"is a {_shape(there)} in the config files and can't be replaced by a {_shape(value)}")


def _check_override_names(overrides: dict[str, Any], servers: Iterable[str], findings: Findings) -> None:
    """Finds settings for servers that don't exist: upstream takes them as a new, unused key."""
    names = set(servers)
    for key, value in overrides.items():
        if key not in names and isinstance(value, dict) and any(kind in value for kind in SERVER_TYPES):
            findings.add(f"{OVERRIDES}.{key}", f"names no server of the config: {nearest(key, names)}")


def _lookup(mapping: Any, path: Sequence[str]) -> Any:
    """The value at `path` in nested dicts, None if there is none."""
    for key in path:
        if not isinstance(mapping, dict) or key not in mapping:
            return None
        mapping = mapping[key]
    return mapping


def _is_interpolation(value: object) -> bool:
    return isinstance(value, str) and "${" in value


def _shape(value: object) -> str:
    match value:
        case dict():
            return "mapping"
        case list():
            return "list"
        case _:
            return f"plain value ({value!r})"


def _set_addresses(config: DictConfig) -> None:
    """Placeholders instead of upstream's random ports, so that equal specs give equal configs."""
    address = {"host": PLACEHOLDER_HOST, "port": GYM_PORT}
    config[HEAD_SERVER] = address
    for instance in GlobalConfigDictParser().filter_for_server_instance_configs(config):
        instance.get_inner_run_server_config_dict().update(address)
    for key in CLI_KEYS:
        config.pop(key, None)


def _set_up_policy(config: DictConfig, gym: Gym, policy_url: str, findings: Findings) -> None:
    """Token ids on, reasoning parser off, and the run's own gateway behind every server of the policy.

    A server of the user's own at the gateway whose token ids the overrides switch off is a judge's or the like: its
    calls aren't trained on, so the gateway samples them as they ask.
    """
    for instance in GlobalConfigDictParser().filter_for_server_instance_configs(config):
        if instance.SERVER_TYPE != "responses_api_models":
            continue
        inner = instance.get_inner_run_server_config_dict()
        is_policy = instance.name == POLICY_MODEL_SERVER
        if is_policy and "return_token_id_information" not in inner:
            findings.add(
                f"config key {instance.name}",
                "can't be trained: its model server gives no token ids. Leave the policy's model server out of "
                f"spec.gym.configPaths, or use {TRAINING_MODEL_CONFIG}",
            )
            continue
        if is_policy:
            inner["base_url"] = "${policy_base_url}"
            inner["model"] = "${policy_model_name}"
        elif inner.get("base_url") != policy_url:
            continue
        implementation = next(iter(config[instance.name]["responses_api_models"]))
        place = (instance.name, "responses_api_models", implementation)
        if is_policy or _lookup(gym.overrides, (*place, "return_token_id_information")) is not False:
            if not inner.get("return_token_id_information"):
                print(f"{instance.name}: return_token_id_information is set to true, training needs token ids")
            inner["return_token_id_information"] = True
        path = (*place, "uses_reasoning_parser")
        if inner.get("uses_reasoning_parser") and _lookup(gym.overrides, path) is None:
            inner["uses_reasoning_parser"] = False
            print(
                f"{instance.name}: uses_reasoning_parser is set to false, because vLLM runs without one; "
                f"set {OVERRIDES}.{'.'.join(path)} if spec.inference.args name a reasoning parser"
            )


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
