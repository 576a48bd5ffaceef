"""The chart's alerts, by promtool."""

import subprocess
from pathlib import Path

import pytest

from dev.settings import REPOSITORY

pytestmark = pytest.mark.prometheus

RULES = REPOSITORY / "charts" / "gymtrain" / "files" / "rules.yaml"
CASES = Path(__file__).parent / "rules_test.yaml"


def _run(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_prometheus_can_read_the_rules(promtool: str) -> None:
    code, said = _run(promtool, "check", "rules", "--lint-fatal", str(RULES))
    assert code == 0, said


def test_each_alert_fires_when_it_should_and_only_then(promtool: str) -> None:
    code, said = _run(promtool, "test", "rules", str(CASES))
    assert code == 0, said


def test_the_cases_can_fail(promtool: str, tmp_path: Path) -> None:
    broken = RULES.read_text().replace("> 600", "> 6000")
    (tmp_path / "rules.yaml").write_text(broken)
    cases = CASES.read_text().replace("../../charts/gymtrain/files/rules.yaml", "rules.yaml")
    (tmp_path / "cases.yaml").write_text(cases)
    code, said = _run(promtool, "test", "rules", str(tmp_path / "cases.yaml"))
    assert code != 0
    assert "GymtrainRolloutsFailing" in said
