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
# Modules of a distribution that has another name.
MODULES = {"fhaviary": "aviary", "mini-swe-agent": "minisweagent", "openenv-core": "openenv", "tavily-python": "tavily"}
NEEDED_BY_OTHERS = {"swebench"}  # minisweagent's servers have it where they have that


def described(
    monkeypatch: pytest.MonkeyPatch, name: str, missing: set[str], images: dict[str, str] | None = None
) -> Findings:
    monkeypatch.setattr(code_scan, "_installed", lambda module, roots: module not in missing)
    spec: dict[str, object] = {"configPaths": [f"resources_servers/{name}/configs/{name}.yaml"]}
    spec["servers"] = {server: {"image": image} for server, image in (images or {}).items()}
    findings, gym = Findings(), Gym.model_validate(spec)
    config = resolve(gym, "http://run-gateway:8000", findings)
    assert config is not None, findings.items
    servers.describe(config, gym, findings)
    return findings


def test_an_environment_is_told_which_image_has_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = described(monkeypatch, "grl_sokoban", {"gymnasium", "gym_sokoban"})
    assert [finding.message for finding in findings.items] == [
        "needs the Python packages gym_sokoban, gymnasium, which the Gym image lacks: "
        "name the image gym-environments, which has them, in spec.gym.image"
    ]


def test_a_package_that_is_imported_only_to_score_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """asr_with_pc starts without it, and every rollout would fail."""
    findings = described(monkeypatch, "asr_with_pc", {"jiwer", "of_nobody"})
    assert findings.items == []
    (warning,) = findings.warnings
    assert warning.where == "config key asr_with_pc"
    assert "imports the Python package jiwer" in warning.message
    assert "The image gym-environments has it" in warning.message


def test_a_server_with_an_image_of_its_own_is_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not described(monkeypatch, "asr_with_pc", {"jiwer"}, {"asr_with_pc": "registry/mine:1"}).warnings


@pytest.mark.parametrize("image", ["gym-swe", "gym-environments"])
def test_every_package_of_an_image_is_known_to_preflight(image: str) -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][image]
    names = {re.split(r"[\[=<>]", requirement)[0] for requirement in extra} - NEEDED_BY_OTHERS
    modules = {MODULES.get(name, name.replace("-", "_")) for name in names}
    assert {module for module, has in servers._IMAGES.items() if has == image} == modules
