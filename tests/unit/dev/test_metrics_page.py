"""docs/metrics.md has every metric of operator, trainer, gateway and broker; its values are the chart's."""

import json
import re

import jsonschema
import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily

from dev import metrics
from dev.settings import REPOSITORY
from tests.support.pages import yaml_blocks

TEXT = "# Page\n\n<!-- begin a: made by `make generate` -->\nold\n<!-- end a -->\n\nMore.\n"


def test_the_page_is_current() -> None:
    assert metrics.main(["--check"]) == 0


def test_every_part_with_metrics_is_on_the_page() -> None:
    declaring = {path.relative_to(REPOSITORY).parts[0] for path in REPOSITORY.glob("*/gymtrain_*/**/metrics.py")}
    assert metrics.PARTS.keys() == declaring


def test_a_table_has_name_type_labels_and_meaning() -> None:
    registry = CollectorRegistry()
    Counter("gymtrain_b_total", "Counts a|b.", ["x", "y"], registry=registry)
    Gauge("gymtrain_a", "Is.", registry=registry)
    Gauge("gymtrain_a_seconds", "Takes.", registry=registry)
    Histogram("other_seconds", "Not ours.", registry=registry)
    assert metrics.table(registry).splitlines()[2:] == [
        "| `gymtrain_a` | gauge |  | Is. |",
        "| `gymtrain_a_seconds` | gauge |  | Takes. |",
        "| `gymtrain_b_total` | counter | `x`, `y` | Counts a\\|b. |",
    ]


def test_metrics_that_are_made_at_a_scrape_have_their_labels() -> None:
    class Scraped:
        def collect(self) -> list[CounterMetricFamily]:
            return [CounterMetricFamily("gymtrain_c", "Scraped.", labels=["z"])]

    registry = CollectorRegistry()
    registry.register(Scraped())
    assert metrics.table(registry).splitlines()[2:] == ["| `gymtrain_c_total` | counter | `z` | Scraped. |"]


def test_numbers_that_a_trainer_has_only_later_are_listed() -> None:
    table = metrics.table(metrics.PARTS["trainer"]())
    assert {"gymtrain_trainer_parity", "gymtrain_trainer_reward"} <= set(re.findall(r"`(\w+)`", table))


def test_only_the_tables_are_rewritten() -> None:
    text = metrics.render(TEXT, {"a": "| new |"})
    assert text == TEXT.replace("\nold\n", "\n\n| new |\n\n")


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="begin b"):
        metrics.render(TEXT, {"b": ""})


def test_its_values_are_values_of_the_chart() -> None:
    blocks = yaml_blocks(metrics.PAGE)
    assert blocks
    schema = json.loads((REPOSITORY / "charts/gymtrain/values.schema.json").read_text())
    for block in blocks:
        jsonschema.validate(yaml.safe_load(block), schema)
