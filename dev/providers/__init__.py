"""Whose cluster it is: one that the user names, kind where Docker runs, else one made on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dev.report import DevError
from dev.settings import Settings
from dev.shell import run


class Provider(Protocol):
    """What the commands need of a cluster's owner."""

    def up(self) -> None:
        """See that there is a cluster that works."""
        ...

    def down(self) -> None:
        """Remove what `up` made."""
        ...

    def kubeconfig(self) -> Path:
        """How to reach it."""
        ...

    def images(self, names: Sequence[str]) -> None:
        """Build the named images, or all, and give them to the cluster's nodes."""
        ...


def choose(settings: Settings) -> Provider:
    """The provider for this environment."""
    from dev.providers.existing import Existing
    from dev.providers.kind import Kind
    from dev.providers.local import Local

    named = os.environ.get("KUBECONFIG", "")
    # Exporting our own kubeconfig, as the README advises, must not turn the cluster into a foreign one.
    foreign = named and Path(named).absolute() not in (settings.kubeconfig, Kind(settings).kubeconfig())
    context = os.environ.get("CONTEXT", "")
    if foreign or context:
        return Existing(settings, named, context)
    if not settings.state.exists() and has_docker() and shutil.which("kind"):
        return Kind(settings)
    return Local(settings)


def has_docker() -> bool:
    """Whether an engine answers: the command alone means nothing."""
    if shutil.which("docker") is None:
        return False
    try:
        return run(["docker", "version", "--format={{.Server.Version}}"], check=False, deadline=10).returncode == 0
    except DevError:
        return False
