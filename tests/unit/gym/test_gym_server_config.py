"""The config of one server pod."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gymtrain_gym.config import server_config
from gymtrain_gym.errors import ConfigFileError

pytestmark = pytest.mark.gym


def write(folder: Path, **changes: Any) -> Path:
    server = {"entrypoint": "app.py", "host": "run-gym-weather", "port": 8000, **changes}
    document = {
        "head_server": {"host": "run-gym-head", "port": 8000},
        "weather": {"resources_servers": {"weather_impl": server}},
        "policy_base_url": "http://x",
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_own_host_becomes_the_bind_address_and_others_stay(tmp_path: Path) -> None:
    config = server_config.read(write(tmp_path), "weather", "0.0.0.0")
    document = yaml.safe_load(config.text)
    assert document["weather"]["resources_servers"]["weather_impl"]["host"] == "0.0.0.0"
    assert document["head_server"]["host"] == "run-gym-head"


def test_head_is_a_server_without_a_folder(tmp_path: Path) -> None:
    config = server_config.read(write(tmp_path), "head_server", "0.0.0.0")
    assert config.type is None
    assert config.port == 8000


def test_folder_is_type_and_implementation(tmp_path: Path) -> None:
    assert server_config.read(write(tmp_path), "weather", "x").folder == Path("resources_servers/weather_impl")


def test_uvicorn_workers_are_dropped(tmp_path: Path) -> None:
    config = server_config.read(write(tmp_path, num_workers=4), "weather", "x")
    assert "num_workers" not in config.text


def test_unknown_server_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="no server 'wether': the nearest is 'weather'"):
        server_config.read(write(tmp_path), "wether", "x")


def test_settings_that_are_no_server_are_not_offered(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="it has 'head_server', 'weather'"):
        server_config.read(write(tmp_path), "zzz", "x")


def test_missing_file_says_which(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=r"can't be read.*nowhere\.yaml"):
        server_config.read(tmp_path / "nowhere.yaml", "weather", "x")


def test_broken_yaml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a: [")
    with pytest.raises(ConfigFileError, match="isn't YAML"):
        server_config.read(file, "weather", "x")


def test_port_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="needs a port between 1 and 65535, not None"):
        server_config.read(write(tmp_path, port=None), "weather", "x")
