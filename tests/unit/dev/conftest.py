from pathlib import Path

import pytest

from dev.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Folders of the test's own."""
    return Settings(cache=tmp_path / "cache", state=tmp_path / "state")
