"""Sandboxes in the Gym config: which servers ask for one, and where it comes from.

A server names a block of the config (`sandbox_provider: sandbox`), or holds one itself. A config without that block
gets `sandbox: {gymtrain: {}}`: the run's own sandboxes.
"""

from collections.abc import Iterator
from typing import Any

from nemo_gym.global_config import GlobalConfigDictParser
from omegaconf import DictConfig, OmegaConf

from gymtrain_gym.config.findings import Findings, nearest

BLOCK = "sandbox"
PROVIDER = "gymtrain"
_RESERVED = "default_metadata"  # of a block, beside its provider


def set_up(config: DictConfig, *, provided: bool, findings: Findings) -> None:
    """Adds the block where it is missing, and finds what can't work.

    Args:
        config: the resolved config; changed in place.
        provided: the run has spec.sandboxes.
        findings: what is wrong is added here.
    """
    for path, reference in _references(config):
        block = reference
        if isinstance(reference, str):
            if reference not in config:
                if reference != BLOCK:
                    names = [str(key) for key in config if _provider(config[key]) is not None]
                    findings.add(
                        path, f"names the sandbox {reference!r}, which the config lacks: {nearest(reference, names)}"
                    )
                    continue
                config[BLOCK] = {PROVIDER: {}}
            path, block = f"config key {reference}", config[reference]
        provider = _provider(block)
        if provider is None:
            findings.add(path, f"isn't a sandbox: expected one provider and its settings, such as {{{PROVIDER}: {{}}}}")
        elif provider == PROVIDER and not provided:
            findings.add(
                path, "needs sandboxes of this run: add spec.sandboxes ({} is enough), or configure another provider"
            )


def check_users(config: DictConfig, *, root: bool, findings: Findings) -> None:
    """Finds agents that want to be root in sandboxes that are not: each of their commands would be refused."""
    for instance in GlobalConfigDictParser().filter_for_server_instance_configs(config):
        inner = instance.get_inner_run_server_config_dict()
        settings = inner.get("sandbox_environment_kwargs")
        block = inner.get("sandbox_provider")
        block = config.get(block) if isinstance(block, str) else block
        if root or settings is None or _provider(block) != PROVIDER or settings.get("user") not in ("root", 0, "0"):
            continue
        kind, implementation = instance.SERVER_TYPE, next(iter(config[instance.name][instance.SERVER_TYPE]))
        path = f"{instance.name}.{kind}.{implementation}.sandbox_environment_kwargs.user"
        findings.add(
            f"config key {path}",
            'is root, but the run\'s sandboxes are not: set it to "65532", their user, in spec.gym.overrides (kubectl '
            "drops a null), or spec.sandboxes.root to true",
        )


def _references(config: DictConfig) -> Iterator[tuple[str, Any]]:
    """Where servers say which sandbox they want, and what they say."""
    for instance in GlobalConfigDictParser().filter_for_server_instance_configs(config):
        reference = instance.get_inner_run_server_config_dict().get("sandbox_provider")
        if reference is not None:
            yield f"config key {instance.name}.sandbox_provider", reference


def _provider(block: Any) -> str | None:
    """The provider that a block names, None where it is no sandbox's block."""
    if not OmegaConf.is_dict(block) and not isinstance(block, dict):
        return None
    names = [str(name) for name in block if name != _RESERVED]
    return names[0] if len(names) == 1 else None
