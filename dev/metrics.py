"""The tables of docs/metrics.md, made from the parts' own registries: `python -m dev.metrics [--check]`.

The text around the tables is written by hand. A table stands between two comments that name its part.
"""

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

# They declare their metrics in the default registry.
import gymtrain_operator.metrics
import gymtrain_operator.run_metrics  # noqa: F401
from dev.settings import REPOSITORY
from gymtrain_api.wiring import TrainerProgress
from gymtrain_broker.metrics import Metrics as BrokerMetrics
from gymtrain_broker.policy.state import State
from gymtrain_gateway.metrics import Metrics as GatewayMetrics
from gymtrain_trainer.monitoring import metrics as trainer_metrics
from gymtrain_trainer.progress import ProgressBoard

PAGE = REPOSITORY / "docs" / "metrics.md"
_BY = "made by `make generate`"
_OPTIONAL_NUMBERS: tuple[Any, ...] = (int | None, float | None)


def _trainer() -> CollectorRegistry:
    # A trainer shows a number once it has it, so each that may be missing gets a value.
    optional = [name for name, field in TrainerProgress.model_fields.items() if field.annotation in _OPTIONAL_NUMBERS]
    progress = TrainerProgress(phase="training", updated_at=0.0, **dict.fromkeys(optional, 1))
    return trainer_metrics.registry(ProgressBoard(progress))


def _gateway() -> CollectorRegistry:
    metrics = GatewayMetrics()
    # No pods, no calls: only the names and labels are wanted.
    pods: Any = SimpleNamespace(admissible=list, admissions={})
    dispatcher: Any = SimpleNamespace(queued=0, in_flight={})

    class Ledger(list[Any]):
        unasked = forgotten = 0

    ledger: Any = Ledger()
    prompts: Any = SimpleNamespace(held=0)
    metrics.watch(pods, dispatcher, ledger, prompts)
    return metrics.registry


def _broker() -> CollectorRegistry:
    metrics = BrokerMetrics()
    metrics.watch(State())
    return metrics.registry


PARTS: Mapping[str, Callable[[], CollectorRegistry]] = {
    "operator": lambda: REGISTRY,
    "trainer": _trainer,
    "gateway": _gateway,
    "broker": _broker,
}


def table(registry: CollectorRegistry) -> str:
    """The metrics of a registry, without those of Python and the process."""
    rows = sorted((row for one in _collectors(registry) for row in _rows(one)), key=lambda row: row[0].strip("`"))
    lines = [["Metric", "Type", "Labels", "Meaning"], ["---"] * 4, *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '\\|') for cell in line)} |" for line in lines)


def _collectors(registry: CollectorRegistry) -> list[Any]:
    # prometheus_client has no public list of what is registered, and none of the labels of a metric without values.
    return list(registry._collector_to_names)


def _rows(collector: Any) -> Iterator[list[str]]:
    for family in collector.collect():
        if not family.name.startswith("gymtrain_"):
            continue
        labels = getattr(family, "_labelnames", ()) or getattr(collector, "_labelnames", ())
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield [f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation]


def render(text: str, tables: Mapping[str, str]) -> str:
    """The page with these tables, by part.

    Raises:
        ValueError: the text has no place for a table.
    """
    for part, content in tables.items():
        begin, end = f"<!-- begin {part}: {_BY} -->", f"<!-- end {part} -->"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"{PAGE} has no lines {begin} and {end}, between which a table goes")
        text = f"{before}{begin}\n\n{content}\n\n{end}{after}"
    return text


def main(arguments: list[str]) -> int:
    """Writes the page, or compares it."""
    text = PAGE.read_text()
    wanted = render(text, {part: table(registry()) for part, registry in PARTS.items()})
    if "--check" not in arguments:
        PAGE.write_text(wanted)
        return 0
    if text == wanted:
        return 0
    print("\n".join(difflib.unified_diff(text.splitlines(), wanted.splitlines(), "committed", "wanted", lineterm="")))
    print(f"{PAGE.name} is not what the metrics say: run `make generate`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
