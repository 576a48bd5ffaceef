"""Figures, with what they should be."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One figure. `aim`: what it should be at most, in the same unit; None where it only explains another."""

    benchmark: str
    figure: str
    value: float
    unit: str
    aim: float | None = None


def as_table(results: list[Result]) -> str:
    """A Markdown table."""
    lines = ["| benchmark | figure | value | aim |", "|---|---|---|---|"]
    for r in results:
        aim = "" if r.aim is None else f"≤ {r.aim:g} {r.unit}" + ("" if r.value <= r.aim else " (missed)")
        lines.append(f"| {r.benchmark} | {r.figure} | {r.value:.2f} {r.unit} | {aim} |")
    return "\n".join(lines)
