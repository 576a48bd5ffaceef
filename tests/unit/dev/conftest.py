"""Settings of the test's own, and a tree that a release can be made of."""

from pathlib import Path

import pytest

from dev.release import __main__ as command
from dev.release import agreement
from dev.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Folders of the test's own."""
    return Settings(cache=tmp_path / "cache", state=tmp_path / "state")


@pytest.fixture
def agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All files name 0.2.0, the tree is what git has, and a release is an index that nothing makes."""
    monkeypatch.setattr(agreement, "versions", dict)
    monkeypatch.setattr(agreement, "commit", lambda: "c" * 40)
    monkeypatch.setattr(command, "PARTS", {"index": (lambda job: None, "nothing")})
