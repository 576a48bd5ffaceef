"""What has to be so before a release is made: one version everywhere, and a tree that is what git has."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import yaml

from dev.report import DevError
from dev.settings import NAME, REPOSITORY
from dev.shell import run

_VERSION = re.compile(r"\d+\.\d+\.\d+$")
"""Python and Helm write what precedes a release differently, so there are none of that kind."""
_FIX = "write it there; in uv.lock by `uv lock`"


def versions(root: Path = REPOSITORY) -> dict[str, str]:
    """The version that each file names, by where in it."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((root / "charts" / NAME / "Chart.yaml").read_text())
    packages = tomllib.loads((root / "uv.lock").read_text())["package"]
    heading = re.search(r"^## (?!Unreleased)v?(\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    return {
        "pyproject.toml, project.version": str(project["version"]),
        "uv.lock, package gymtrain": next((one["version"] for one in packages if one["name"] == NAME), ""),
        f"charts/{NAME}/Chart.yaml, version": str(chart["version"]),
        f"charts/{NAME}/Chart.yaml, appVersion": str(chart["appVersion"]),
        "CHANGELOG.md, first heading that isn't Unreleased": heading[1] if heading else "",
    }


def check_versions(wanted: str, named: Mapping[str, str]) -> None:
    """Refuses a version that isn't one, or that a file doesn't name.

    Raises:
        DevError: with the places that disagree.
    """
    if not _VERSION.match(wanted):
        raise DevError(f"--version {wanted}: not three numbers, such as 0.2.0", fix="without a v, and without rc")
    if wrong := {where: found for where, found in named.items() if found != wanted}:
        lines = "".join(f"\n  {where}: {found or 'none'}" for where, found in wrong.items())
        raise DevError(f"this is to be release {wanted}, but the repository says otherwise:{lines}", fix=_FIX)


def commit(root: Path = REPOSITORY) -> str:
    """The commit that the tree is, to the last byte.

    Raises:
        DevError: files differ from it, or git doesn't ignore some that it doesn't know.
    """
    if changed := run(["git", "status", "--porcelain"], cwd=root).stdout.splitlines():
        listed = "".join(f"\n  {line}" for line in changed[:10]) + ("\n  …" if len(changed) > 10 else "")
        raise DevError(f"the tree is not what git has, so nobody could make it again:{listed}", fix="commit or remove")
    return run(["git", "rev-parse", "HEAD"], cwd=root).stdout.strip()
