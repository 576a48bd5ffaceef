"""Checks `${oc.env:NAME}` in the Gym config: whether NAME is provided and everything resolves.

Values of Secrets are not in the preflight pod; placeholders stand in for them.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gymtrain_api.spec import Gym
from gymtrain_gym.config.findings import Findings, nearest

# ${oc.env:NAME} or ${oc.env:NAME,default}
ENV_REFERENCE = re.compile(r"\$\{\s*oc\.env\s*:\s*([A-Za-z_][A-Za-z0-9_]*)\s*(,|\})")


def provided(gym: Gym) -> tuple[set[str], bool]:
    """Names that spec.gym sets for its servers, and whether there may be more of them (envFrom)."""
    names = {str(entry.get("name")) for entry in gym.env}
    open_ended = False
    templates = [gym.template, *(server.template for server in gym.servers.values())]
    for template in templates:
        for container in ((template or {}).get("spec") or {}).get("containers") or []:
            names |= {str(entry.get("name")) for entry in container.get("env") or []}
            open_ended = open_ended or bool(container.get("envFrom"))
    return names, open_ended


def provide_placeholders(gym: Gym) -> None:
    """Sets every provided name in this process, so that the config resolves."""
    for name in provided(gym)[0]:
        os.environ.setdefault(name, "placeholder")


def check_variables(config: DictConfig, gym: Gym, findings: Findings) -> None:
    """Finds environment variables that nobody provides. Placeholders let the rest be checked."""
    names, open_ended = provided(gym)
    for path, name in _references(OmegaConf.to_container(config)):
        if name in os.environ:
            continue
        if not open_ended:
            hint = f"; {nearest(name, names)}" if names else ""
            findings.add(f"config key {path}", f"needs the environment variable {name}: add it to spec.gym.env{hint}")
        os.environ[name] = "placeholder"


def check_resolves(config: DictConfig, findings: Findings) -> None:
    """Finds interpolations that don't resolve."""
    for key, value in OmegaConf.to_container(config).items():
        try:
            OmegaConf.to_container(OmegaConf.create({key: value}, parent=config), resolve=True)
        except OmegaConfBaseException as error:
            where = getattr(error, "full_key", None) or str(key)
            findings.add(f"config key {where}", f"does not resolve: {str(error).splitlines()[0]}")


def _references(node: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(path, variable) of every variable without a default."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _references(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(node, list):
        for position, value in enumerate(node):
            yield from _references(value, f"{prefix}[{position}]")
    elif isinstance(node, str):
        for name, end in ENV_REFERENCE.findall(node):
            if end == "}":
                yield prefix, name
