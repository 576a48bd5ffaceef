"""Alerts, their cases and their runbooks name each other."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from dev import metrics
from dev.settings import REPOSITORY
from dev.site.hooks import SLUGIFY

RULES = yaml.safe_load((REPOSITORY / "charts/gymtrain/files/rules.yaml").read_text())
CASES = yaml.safe_load((REPOSITORY / "tests/prometheus/rules_test.yaml").read_text())
PAGE = (REPOSITORY / "docs/runbooks.md").read_text()


def _alerts() -> Iterator[dict[str, Any]]:
    for group in RULES["groups"]:
        yield from group["rules"]


def test_each_alert_has_a_section_in_the_runbooks_and_each_section_an_alert() -> None:
    headings = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert headings == [alert["alert"] for alert in _alerts()]


def test_each_alert_links_to_its_section() -> None:
    for alert in _alerts():
        assert alert["annotations"]["runbook_url"] == f"docs/runbooks.md#{SLUGIFY(alert['alert'], '-')}"


def test_each_alert_says_how_bad_it_is_and_what_is_the_matter() -> None:
    for alert in _alerts():
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}
        assert {"summary", "description", "runbook_url"} == alert["annotations"].keys()


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    fires = {case["alertname"] for test in CASES["tests"] for case in test["alert_rule_test"] if case.get("exp_alerts")}
    assert fires == {alert["alert"] for alert in _alerts()}


def test_each_alert_has_a_case_in_which_it_does_not_fire() -> None:
    quiet = {
        case["alertname"] for test in CASES["tests"] for case in test["alert_rule_test"] if not case.get("exp_alerts")
    }
    # Those without are silent about another run in the very case in which they fire.
    assert {alert["alert"] for alert in _alerts()} - quiet == {
        "GymtrainRunUnhealthy",
        "GymtrainSandboxesFailing",
        "GymtrainSandboxImagesFailing",
    }


def test_alerts_are_about_metrics_that_exist() -> None:
    page = metrics.PAGE.read_text()
    for alert in _alerts():
        for name in re.findall(r"\bgymtrain_\w+", alert["expr"]):
            assert f"`{name}`" in page, f"{alert['alert']}: {name}"
