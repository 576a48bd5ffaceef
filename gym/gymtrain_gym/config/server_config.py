"""The part of the resolved Gym config that one server pod needs.

NeMo Gym hands its child processes the whole config as text in NEMO_GYM_CONFIG_DICT, and the child's
own key in NEMO_GYM_CONFIG_PATH; the child takes the text as it is. Here the text comes from a file,
since one environment string over 128 KiB makes exec() fail (Linux, MAX_ARG_STRLEN).
"""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml

from gymtrain_api.wiring import HEAD_SERVER
from gymtrain_gym.errors import ConfigFileError

type ServerType = Literal["responses_api_agents", "resources_servers", "responses_api_models"]

# NeMo Gym's types of servers, which are also the folders of their code, and what a user calls them.
KINDS: dict[ServerType, str] = {
    "responses_api_agents": "agent",
    "resources_servers": "resources",
    "responses_api_models": "model",
}
SERVER_TYPES = tuple(KINDS)


@dataclass(frozen=True)
class ServerConfig:
    """One server of the config."""

    name: str  # top-level key
    type: ServerType | None  # None: the head
    implementation: str  # folder below `type`; empty for the head
    entrypoint: str  # file in that folder
    port: int
    text: str  # the whole config as YAML, with this server's host replaced
    has_ray_address: bool  # the user brings a Ray cluster
    concurrency: int = 1  # requests that the server works on at once, where its settings say so

    @property
    def folder(self) -> Path:
        """The server's folder, relative to NeMo Gym's root."""
        assert self.type is not None, "the head has no folder"
        return Path(self.type, self.implementation)


def read(file: Path, name: str, bind: str) -> ServerConfig:
    """The config of server `name`, whose own host becomes `bind`: a server binds to and is reached by
    the same `host` entry, and a pod can't bind to the address of its Service.

    Raises:
        ConfigFileError: no such file, no YAML mapping, no such server, or no usable port.
    """
    document = _load(file)
    names = server_names(document)
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"the nearest is {near[0]!r}" if near else f"it has {', '.join(map(repr, names)) or 'none'}"
        raise ConfigFileError(f"{file} has no server {name!r}: {hint}")
    kind: ServerType | None = None
    implementation = ""
    inner = document[name]
    if name != HEAD_SERVER:
        kind = next(k for k in SERVER_TYPES if k in inner)
        implementation, inner = next(iter(inner[kind].items()))
    port = inner.get("port")
    if not isinstance(port, int) or not 0 < port < 65536:
        raise ConfigFileError(f"{file}: server {name!r} needs a port between 1 and 65535, not {port!r}")
    inner["host"] = bind
    inner.pop("num_workers", None)  # one process a pod: workers would split session state
    document.setdefault("dry_run", False)
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    entrypoint = str(inner.get("entrypoint", "app.py"))
    concurrency = inner.get("concurrency")
    return ServerConfig(
        name,
        kind,
        implementation,
        entrypoint,
        port,
        text,
        has_ray_address=bool(document.get("ray_head_node_address")),
        concurrency=concurrency if isinstance(concurrency, int) and concurrency > 0 else 1,
    )


def server_names(document: dict[str, Any]) -> list[str]:
    """Top-level keys that are servers, the head included."""
    return [key for key, value in document.items() if key == HEAD_SERVER or _is_server(value)]


def _is_server(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    inner = next((value[kind] for kind in SERVER_TYPES if kind in value), None)
    return isinstance(inner, dict) and len(inner) == 1 and isinstance(next(iter(inner.values())), dict)


def _load(file: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(file.read_text())
    except OSError as error:
        raise ConfigFileError(f"the Gym config can't be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigFileError(f"{file} isn't YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigFileError(f"{file} contains no mapping of servers")
    return document
