"""dev/install.sh, with stand-ins for kubectl and helm that write down how they are called."""

import os
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_PENDING = "secret/sh.helm.release.v1.gymtrain.v2"


@pytest.fixture
def called(tmp_path: Path) -> Path:
    return tmp_path / "called"


def _install(tmp_path: Path, called: Path, *, pending_for: int) -> None:
    """Run it in a cluster whose release is pending when it is asked for, so many times."""
    left = tmp_path / "left"
    left.write_text("x" * pending_for)
    programs = {
        "helm": f'echo "helm $*" >> "{called}"',
        "kubectl": f"""
            case "$*" in
            *delete*) echo "kubectl $*" >> "{called}"; : > "{left}" ;;
            *) [ ! -s "{left}" ] || {{ echo {_PENDING}; truncate -s -1 "{left}"; }} ;;
            esac""",
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(
        [_ROOT / "dev/install.sh"], check=True, timeout=60, env={**os.environ, "PATH": path, "HELM_TIMEOUT": "2"}
    )


def test_a_release_that_a_killed_helm_left_pending_is_removed(tmp_path: Path, called: Path) -> None:
    _install(tmp_path, called, pending_for=1000)

    removed, upgrade = called.read_text().splitlines()
    assert removed.startswith("kubectl --namespace gymtrain-system delete")
    assert _PENDING in removed
    assert upgrade.startswith("helm upgrade --install gymtrain")


def test_a_helm_that_still_works_is_waited_for(tmp_path: Path, called: Path) -> None:
    _install(tmp_path, called, pending_for=3)

    (upgrade,) = called.read_text().splitlines()
    assert upgrade.startswith("helm upgrade --install gymtrain")


def test_nothing_is_waited_for_where_no_helm_is_at_work(tmp_path: Path, called: Path) -> None:
    _install(tmp_path, called, pending_for=0)

    (upgrade,) = called.read_text().splitlines()
    assert "--timeout 2s" in upgrade
