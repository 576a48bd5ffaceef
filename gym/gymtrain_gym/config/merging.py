"""Checks of spec.gym.overrides against the config that they are merged over."""

from collections.abc import Iterable, Sequence
from typing import Any

from gymtrain_gym.config.findings import Findings, nearest

WHERE = "spec.gym.overrides"
SERVER_TYPES = ("responses_api_agents", "resources_servers", "responses_api_models")


def check(overrides: Any, base: Any, findings: Findings, path: str = WHERE) -> None:
    """Finds overrides whose shape does not fit: OmegaConf refuses them, or loses a whole server without a word."""
    for key, value in overrides.items():
        if key not in base:
            continue
        here, there = f"{path}.{key}", base[key]
        if isinstance(there, dict) and isinstance(value, dict):
            check(value, there, findings, here)
        elif value is None or _is_interpolation(value) or _is_interpolation(there):
            continue
        elif isinstance(there, dict) or (isinstance(there, list) and isinstance(value, dict)):
            findings.add(here, f"is a {_shape(there)} in the config files and can't be replaced by a {_shape(value)}")


def check_names(overrides: dict[str, Any], servers: Iterable[str], findings: Findings) -> None:
    """Finds settings for servers that don't exist: upstream takes them as a new, unused key."""
    names = set(servers)
    for key, value in overrides.items():
        if key not in names and isinstance(value, dict) and any(kind in value for kind in SERVER_TYPES):
            findings.add(f"{WHERE}.{key}", f"names no server of the config: {nearest(key, names)}")


def lookup(mapping: Any, path: Sequence[str]) -> Any:
    """The value at `path` in nested dicts, None where there is none."""
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
