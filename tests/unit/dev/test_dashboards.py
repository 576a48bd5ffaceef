"""The chart's dashboards: as dev/dashboards makes them, by Grafana's schema, about metrics that exist."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dev import metrics
from dev.dashboards.__main__ import DASHBOARDS, FOLDER, main

NAMES = sorted(DASHBOARDS)


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def _panels(name: str) -> Iterator[dict[str, Any]]:
    yield from (panel for panel in _read(name)["panels"] if panel["type"] != "row")


def test_the_files_are_current() -> None:
    assert main(["--check"]) == 0
    assert sorted(path.stem for path in FOLDER.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_fits_grafanas_schema(name: str) -> None:
    """Grafana's types read it, and nothing of it is lost."""
    document = _read(name)
    assert json.loads(json.dumps(Dashboard.from_json(document), cls=JSONEncoder)) == document


@pytest.mark.parametrize("name", NAMES)
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = _read(name)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", NAMES)
def test_a_panel_shows_something_of_the_source_that_the_reader_chose(name: str) -> None:
    for panel in _panels(name):
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["expr"], panel["title"]
            assert target["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("name", NAMES)
def test_dashboards_are_about_metrics_that_exist(name: str) -> None:
    page = metrics.PAGE.read_text()
    for panel in _panels(name):
        for target in panel["targets"]:
            for metric in re.findall(r"\bgymtrain_\w+", target["expr"]):
                family = re.sub(r"_seconds_(bucket|count|sum)$", "_seconds", metric)
                assert f"`{family}`" in page, f"{panel['title']}: {metric}"


def test_a_runs_dashboard_is_about_one_run() -> None:
    for panel in _panels("run"):
        for target in panel["targets"]:
            for metric in re.findall(r"\bgymtrain_\w+\b(\{[^}]*\})?", target["expr"]):
                assert 'namespace="$namespace",run="$run"' in metric, target["expr"]
