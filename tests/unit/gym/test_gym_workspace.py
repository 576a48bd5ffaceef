"""The writable twin of a server's folder."""

from pathlib import Path

import pytest

from gymtrain_gym.errors import ConfigFileError
from gymtrain_gym.server import workspace

pytestmark = pytest.mark.gym


@pytest.fixture
def twin(tmp_path: Path) -> Path:
    source = tmp_path / "read-only" / "resources_servers" / "weather"
    (source / "data").mkdir(parents=True)
    (source / "tests").mkdir()
    (source / "app.py").write_text("code")
    (source / "data" / "table.txt").write_text("rows")
    return workspace.mirror(source, tmp_path / "scratch" / "resources_servers" / "weather")


def test_files_are_read_through_the_twin(twin: Path) -> None:
    assert (twin / "data" / "table.txt").read_text() == "rows"


def test_new_files_land_in_the_twin_only(twin: Path, tmp_path: Path) -> None:
    (twin / "data" / "cache.txt").write_text("x")
    assert not (tmp_path / "read-only" / "resources_servers" / "weather" / "data" / "cache.txt").exists()


def test_tests_of_the_server_are_left_out(twin: Path) -> None:
    assert not (twin / "tests").exists()


def test_mirroring_again_keeps_what_was_written(twin: Path, tmp_path: Path) -> None:
    (twin / "cache.txt").write_text("kept")
    workspace.mirror(tmp_path / "read-only" / "resources_servers" / "weather", twin)
    assert (twin / "cache.txt").read_text() == "kept"


def test_missing_server_code_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=f"no server code in resources_servers/nothing: looked in {tmp_path}"):
        workspace.server_folder(Path("resources_servers/nothing"), "app.py", [tmp_path])


def test_added_environments_win_over_the_installation(tmp_path: Path) -> None:
    own = tmp_path / "resources_servers" / "reasoning_gym"
    own.mkdir(parents=True)
    assert workspace.find(Path("resources_servers/reasoning_gym"), workspace.roots()) == own
