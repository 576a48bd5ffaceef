"""How containerd is started."""

from pathlib import Path

import pytest

from dev.cluster import containerd
from dev.settings import Settings
from dev.supply import binaries


def test_containerd_2_finds_its_shim_and_runc_where_debian_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BuildKit's containers run by the shim's default, which is the name `runc`."""
    settings = Settings(cache=tmp_path / "cache", state=tmp_path / "state")
    settings.state.mkdir()
    settings.containerd_2.touch()
    monkeypatch.setattr(binaries, "apart", lambda _, program: tmp_path / f"set-of-{program}" / program)
    monkeypatch.setattr(containerd, "write_cni", lambda _: tmp_path)

    folders = containerd.daemon(settings).env["PATH"].split(":")

    assert folders[:2] == [str(tmp_path / "set-of-containerd"), str(tmp_path / "set-of-runc")]
    assert len(folders) > 2, "and the system's own"
