"""Prometheus' own programs."""

import os
import shutil
from pathlib import Path

import pytest


def program(name: str) -> str:
    """Path of prometheus or promtool, from the folder that PROMETHEUS names, else from the PATH."""
    found = shutil.which(name, path=os.environ.get("PROMETHEUS") or None)
    if found is None:
        pytest.fail(f"no {name}: run `make test-prometheus`, or set PROMETHEUS to the folder that has it")
    return found


@pytest.fixture
def promtool() -> str:
    """Path of promtool."""
    return program("promtool")


@pytest.fixture
def prometheus() -> Path:
    """Path of prometheus."""
    return Path(program("prometheus"))
