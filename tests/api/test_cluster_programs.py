"""The development cluster's programs, by Go itself: what a machine with everything in its cache would not notice."""

import os
import subprocess

import pytest

from dev.settings import Settings
from dev.supply.sets import SETS, BinarySet
from dev.supply.toolchain import find


@pytest.mark.parametrize("programs", [one for one in SETS if not one.lazy], ids=lambda one: one.name)
def test_the_programs_of_a_set_can_be_built_by_one_command(programs: BinarySet) -> None:
    go = find(Settings())
    command = [str(go.program), "list", "-deps", "-f", "", "-tags", programs.tags, *programs.packages.values()]
    listed = subprocess.run(
        command,
        cwd=programs.folder,
        env={**os.environ, **go.env, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
