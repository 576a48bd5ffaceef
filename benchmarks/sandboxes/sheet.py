"""Figures of several sides beside each other, as Markdown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Figure:
    """One line: the same measured of each side. `aim`: what ours should be at most; `load` of the machine, by side."""

    what: str
    unit: str
    values: Mapping[str, float]
    aim: float | None = None
    load: Mapping[str, float] = field(default_factory=dict[str, float])

    def verdict(self) -> str:
        """The aim, and whether it was missed."""
        if self.aim is None:
            return ""
        ours = self.values.get("ours")
        return f"≤ {self.aim:g} {self.unit}".strip() + ("" if ours is not None and ours <= self.aim else " (missed)")


def as_table(figures: Sequence[Figure]) -> str:
    """One column a side, those that have none of a figure left empty."""
    sides = list(dict.fromkeys(side for figure in figures for side in figure.values))
    lines = [f"| figure | {' | '.join(sides)} | aim | load |", "|---|" + "---|" * (len(sides) + 2)]
    for figure in figures:
        cells = [_cell(figure, side) for side in sides]
        load = " / ".join(f"{figure.load[side]:.1f}" for side in sides if side in figure.load)
        lines.append(f"| {figure.what} | {' | '.join(cells)} | {figure.verdict()} | {load} |")
    return "\n".join(lines)


def as_json(figures: Sequence[Figure]) -> str:
    """One line each."""
    return "\n".join(json.dumps(asdict(figure)) for figure in figures)


def writes_table(writes: Mapping[str, Mapping[str, float]]) -> str:
    """Writes of one claim by verb and resource: one column for each of what is compared."""
    names = sorted({name for one in writes.values() for name in one if name != "409"})
    lines = [f"| writes of one claim | {' | '.join(writes)} |", "|---|" + "---|" * len(writes)]
    for name in [*names, "409"]:
        if any(name in one for one in writes.values()):
            lines.append(
                f"| {name} | {' | '.join(f'{one[name]:g}' if name in one else '' for one in writes.values())} |"
            )
    totals = (f"{total(one):.1f}" for one in writes.values())
    return "\n".join([*lines, f"| **all** | {' | '.join(totals)} |"])


def total(writes: Mapping[str, float]) -> float:
    """Writes that succeeded."""
    return sum(count for name, count in writes.items() if name != "409")


def own(writes: Mapping[str, float]) -> float:
    """Those of who hands out sandboxes and of its client: neither the scheduler's nor the node's, and no events."""
    others = ("pods/status", "pods/binding", "events")
    return sum(count for name, count in writes.items() if name != "409" and not name.endswith(others))


def _cell(figure: Figure, side: str) -> str:
    value = figure.values.get(side)
    if value is None:
        return ""
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{text} {figure.unit}".strip()
