"""Config files are read from NeMo Gym's roots alone, and no message tells of any other file."""

import os
from pathlib import Path

import pytest

from gymtrain_api.spec import Gym
from gymtrain_gym.config.findings import Findings
from gymtrain_gym.config.resolve import resolve

pytestmark = pytest.mark.gym

REASONING_GYM = "resources_servers/reasoning_gym/configs/reasoning_gym.yaml"
SECRET = "root_password: hunter2\n"


def said(*paths: str) -> list[str]:
    """The findings on these config paths; tests run in a working directory of their own, NeMo Gym's first root."""
    findings = Findings()
    assert resolve(Gym(config_paths=list(paths)), "http://gateway:8000", findings) is None
    return [f"{finding.where}: {finding.message}" for finding in findings.items]


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("outside") / "secret.yaml"
    file.write_text(SECRET)
    return file


@pytest.mark.parametrize("way", ["absolute", "upwards", "link", "missing", "unreadable"])
def test_a_path_that_leads_out_of_the_roots_is_refused_and_its_file_never_read(
    way: str, outside: Path, tmp_path: Path
) -> None:
    path = str(outside)
    if way == "upwards":
        path = os.path.relpath(outside, tmp_path)
    elif way == "link":
        (tmp_path / "mine.yaml").symlink_to(outside)
        path = "mine.yaml"
    elif way == "missing":
        outside.unlink()
    elif way == "unreadable":
        outside.chmod(0)
    (message,) = said(REASONING_GYM, path)
    assert message.startswith(f"spec.gym.configPaths[1]: {path!r} leads out of the folders for NeMo Gym's configs")
    assert str(tmp_path) in message
    assert "hunter2" not in message


def test_a_file_that_a_config_names_must_be_inside_too(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"config_paths: [{REASONING_GYM}, {outside}]\n")
    (message,) = said("mine.yaml")
    assert message.startswith(f"config_paths of a config file, {str(outside)!r}: leads out of the folders")
    assert "hunter2" not in message


def test_own_configs_in_the_working_directory_are_read_through_the_links_that_a_config_map_has(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "mine.yaml").write_text(f"config_paths: [{REASONING_GYM}]\n")
    (tmp_path / "mine.yaml").symlink_to("..data/mine.yaml")
    findings = Findings()
    assert resolve(Gym(config_paths=["mine.yaml"]), "http://gateway:8000", findings) is not None
    assert findings.items == []
