"""A disk that is nearly full is said before images are built, and where a build failed on it."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from dev.images import buildkit
from dev.settings import Settings


@pytest.mark.parametrize(("free", "said"), [(3 * 10**9, True), (40 * 10**9, False)])
def test_little_room_is_said_with_what_it_does(
    free: int, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    told = buildkit.little_room(Settings(cache=tmp_path, state=tmp_path))
    assert bool(told) is said
    if said:
        assert f"the disk of {tmp_path / 'store'} has 3 GB free" in told
