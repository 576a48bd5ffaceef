"""Mounts below a folder: pods, sandboxes and network namespaces leave many, and removal has to find them all."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from dev.report import DevError
from dev.shell import run


def below(folder: Path) -> list[Path]:
    """Mount points at or below the folder, the most recent first."""
    points: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # The kernel writes blanks in paths as octal escapes.
        point = Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), line.split()[4]))
        if point.is_relative_to(folder):
            points.append(point)
    return points[::-1]


def remove_tree(folder: Path) -> None:
    """Delete a folder, mounts first: deleting through a mount would delete what is mounted."""
    for point in below(folder):
        run(["umount", "--lazy", point], check=False)
    if left := below(folder):
        raise DevError(f"cannot unmount {left[0]}", fix=f"find who uses it: `fuser -vm {left[0]}`")
    if folder.exists():
        shutil.rmtree(folder)
