"""Which of our images preflight names to a config whose servers import what the Gym image lacks."""

import re
import tomllib
from pathlib import Path

import pytest

from gymtrain_api.spec import Gym
from gymtrain_gym.config import code_scan, servers
from gymtrain_gym.config.findings import Findings
from gymtrain_gym.config.resolve import resolve

ROOT = Path(__file__).parents[3]
SOKOBAN = "resources_servers/grl_sokoban/configs/grl_sokoban.yaml"
# Modules of a distribution that has another name.
MODULES = {"fhaviary": "aviary", "mini-swe-agent": "minisweagent", "openenv-core": "openenv", "tavily-python": "tavily"}
NEEDED_BY_OTHERS = {"swebench"}  # minisweagent's servers have it where they have that


def said(monkeypatch: pytest.MonkeyPatch, *missing: str) -> list[str]:
    monkeypatch.setattr(code_scan, "_installed", lambda module, roots: module not in missing)
    findings, gym = Findings(), Gym(config_paths=[SOKOBAN])
    config = resolve(gym, "http://run-gateway:8000", findings)
    assert config is not None, findings.items
    servers.describe(config, gym, findings)
    return [finding.message for finding in findings.items]


def test_an_environment_is_told_which_image_has_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, "gymnasium", "gym_sokoban") == [
        "needs the Python packages gym_sokoban, gymnasium, which the Gym image lacks: "
        "name the image gym-environments, which has them, in spec.gym.image"
    ]


@pytest.mark.parametrize("image", ["gym-swe", "gym-environments"])
def test_every_package_of_an_image_is_known_to_preflight(image: str) -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][image]
    names = {re.split(r"[\[=<>]", requirement)[0] for requirement in extra} - NEEDED_BY_OTHERS
    modules = {MODULES.get(name, name.replace("-", "_")) for name in names}
    assert {module for module, has in servers._IMAGES.items() if has == image} == modules
