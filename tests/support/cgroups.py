"""A share of a core for one process of a test, as the kubelet limits a container's."""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dev.host.cgroups import is_unified

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_MICROSECONDS = 100_000


@contextmanager
def share_of_a_core(share: float) -> Iterator[Path]:
    """The `cgroup.procs` of a group of its own whose processes get this much of a core between them; the test is
    skipped where none can be made."""
    quota = int(share * _PERIOD_MICROSECONDS)
    group = (_ROOT if is_unified() else _ROOT / "cpu") / f"gymtrain-test-{uuid.uuid4().hex[:8]}"
    try:
        if is_unified():
            (_ROOT / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        if is_unified():
            (group / "cpu.max").write_text(f"{quota} {_PERIOD_MICROSECONDS}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        yield group / "cgroup.procs"
    finally:
        _remove(group)


def join(procs: Path) -> None:
    """Puts this very process into the group: for `preexec_fn`, so that a program starts in it."""
    procs.write_text(str(os.getpid()))


def _remove(group: Path) -> None:
    end = time.monotonic() + 10
    while True:  # an ended process leaves its group a moment later
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
