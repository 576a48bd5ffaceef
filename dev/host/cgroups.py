"""The control groups under which every process of the cluster's pods and builds runs.

They are also how those processes are found when the cluster is removed, whatever state its daemons are in.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from dev.settings import CGROUP

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "hugetlb")
"""What the kubelet looks for in its root group."""


def is_unified() -> bool:
    """Whether the machine has only cgroup v2."""
    return (_ROOT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    """Version 1 has one tree a controller, version 2 one in all."""
    if is_unified():
        return [_ROOT]
    return [entry for entry in sorted(_ROOT.iterdir()) if entry.is_dir() and not entry.is_symlink()]


def create() -> None:
    """The kubelet wants its root group to exist; in version 1 with CPUs assigned, in 2 with controllers enabled."""
    if is_unified():
        available = (_ROOT / "cgroup.controllers").read_text().split()
        enabled = " ".join(f"+{name}" for name in _CONTROLLERS if name in available)
        (_ROOT / "cgroup.subtree_control").write_text(enabled)
    for hierarchy in _hierarchies():
        group = hierarchy / CGROUP
        group.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            file = group / name
            if not is_unified() and file.exists() and not file.read_text().strip():
                file.write_text((hierarchy / name).read_text())


def groups() -> list[Path]:
    """All our groups, innermost first."""
    found: list[Path] = []
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / CGROUP, topdown=False):
            found.append(Path(folder))
    return found


def pids() -> set[int]:
    """Every process in them."""
    members: set[int] = set()
    for group in groups():
        try:
            members.update(map(int, (group / "cgroup.procs").read_text().split()))
        except OSError:
            continue
    # Processes of other pid namespaces read as 0, which kill() would take for our own process group.
    return members - {0}


def destroy(*, deadline: float = 15.0) -> None:
    """Kill what runs in the groups, then remove them."""
    end = time.monotonic() + deadline
    while (members := pids()) and time.monotonic() < end:
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
    for group in groups():
        try:
            group.rmdir()
        except OSError:
            continue
