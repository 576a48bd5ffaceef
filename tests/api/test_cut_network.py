"""A network that is cut and heals, with the kernel's own hands: what it delivers of a write that was on its way."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_IN_A_NETWORK = ["unshare", "--net"]


def _can_cut() -> bool:
    if not (shutil.which("unshare") and shutil.which("nft")):
        return False
    done = subprocess.run([*_IN_A_NETWORK, "nft", "list", "ruleset"], capture_output=True, timeout=60, check=False)
    return done.returncode == 0


@pytest.mark.parametrize(
    ("seconds", "client", "asked"),
    [
        pytest.param("none", "stopped", ["/before", "/during"], id="as-kernels-do"),
        pytest.param("2", "stopped", ["/before"], id="given-up-though-the-process-is-stopped"),
        pytest.param("2", "ended", ["/before"], id="dropped-with-the-process"),
    ],
)
def test_an_impatient_clients_write_does_not_arrive_late(seconds: str, client: str, asked: list[str]) -> None:
    if not _can_cut():
        pytest.skip("needs root and nftables, as the development cluster does")
    paths = os.pathsep.join(str(_ROOT / part) for part in ("api", "kube", "."))
    done = subprocess.run(
        [*_IN_A_NETWORK, sys.executable, "-m", "tests.support.cut_kernel", seconds, client],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == asked
