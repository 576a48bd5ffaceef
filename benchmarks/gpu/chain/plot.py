"""Draws what curves.py recorded, for the documentation: `python -m benchmarks.gpu.chain.plot curves.csv FOLDER`.

staleness.svg has ours by maxStaleness, a panel for each correction; sides.svg ours and TRL's. Each line is the mean of
the last ten steps' rewards, and the mean over seeds where there are several; a figure is left out where the file has
nothing to compare in it. Prints the summary too.
"""

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.chain import records
from benchmarks.gpu.chain.records import Curve
from gymtrain_cli import curve as reward_curve
from gymtrain_client.steps import Step

WINDOW = 10  # steps
_COLOURS = ("#1f5f8b", "#d1662a", "#3a8a4d", "#8a4f9e", "#8c6d1f", "#5a5a5a")

type Points = Sequence[tuple[int, float]]  # step, smoothed reward


def main() -> int:
    """Writes the figures; 1 where there is nothing to compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("curves", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    curves = records.read(options.curves)
    print(records.table(curves))
    for comparison in records.comparisons(curves):
        print(comparison)
    options.folder.mkdir(parents=True, exist_ok=True)
    drawn = False
    for name, panels in figures(curves).items():
        draw(panels, options.folder / f"{name}.svg")
        print(options.folder / f"{name}.svg")
        drawn = True
    return int(not drawn)


def figures(curves: Sequence[Curve]) -> dict[str, dict[str, dict[str, list[Points]]]]:
    """By figure, title of the panel and label of the line: the seeds' points."""
    found: dict[str, dict[str, dict[str, list[Points]]]] = {}
    ours = [curve for curve in curves if curve.side == "ours"]
    if len({(curve.staleness, curve.correction) for curve in ours}) > 1:
        panels: dict[str, dict[str, list[Points]]] = {}
        for curve in sorted(ours, key=lambda curve: curve.staleness):
            lines = panels.setdefault(f"correction {curve.correction}", {})
            lines.setdefault(f"maxStaleness {curve.staleness}", []).append(points(curve))
        found["staleness"] = panels
    if {curve.side for curve in curves} == {"ours", "trl"}:
        sides: dict[str, list[Points]] = {}
        for curve in curves:
            label = f"ours, maxStaleness {curve.staleness}, correction {curve.correction}"
            sides.setdefault("TRL" if curve.side == "trl" else label, []).append(points(curve))
        found["sides"] = {"ours and TRL's trainer": sides}
    return found


def points(curve: Curve) -> Points:
    """The steps with the mean of their and the steps' before."""
    steps = [Step(step.step, step.reward) for step in curve.steps]
    means = reward_curve.smoothed(steps, WINDOW)
    return [(step.step, mean) for step, mean in zip(steps, means, strict=True)]


def mean(seeds: Iterable[Points]) -> Points:
    """Over seeds, as far as all of them came."""
    rewards = [dict(seed) for seed in seeds]
    shared = set.intersection(*(set(one) for one in rewards))
    return [(step, statistics.fmean(one[step] for one in rewards)) for step in sorted(shared)]


def draw(panels: Mapping[str, Mapping[str, Sequence[Points]]], path: Path) -> None:
    """Writes one figure as SVG, with panels beside each other; the same curves make the same file."""
    import matplotlib as mpl

    mpl.use("Agg")  # no display on the machines this runs on
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "curves", "font.size": 9}
    from matplotlib import pyplot

    size = (1.2 + 4.4 * len(panels), 3.8)
    figure, row = pyplot.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axes, (title, lines) in zip(row[0], panels.items(), strict=True):
        for colour, (label, seeds) in zip(_COLOURS * len(lines), lines.items(), strict=False):
            _line(axes, label, seeds, colour)
        axes.set(title=title, xlabel="optimizer step")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", frameon=False)
    figure.supylabel(f"reward, mean of the last {WINDOW} steps", fontsize="medium")
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def _line(axes: Any, label: str, seeds: Sequence[Points], colour: str) -> None:
    if len(seeds) > 1:
        for seed in seeds:
            axes.plot(*zip(*seed, strict=True), color=colour, linewidth=0.7, alpha=0.4)
        label = f"{label} ({len(seeds)} seeds)"
    axes.plot(*zip(*mean(seeds), strict=True), color=colour, linewidth=1.8, label=label)


if __name__ == "__main__":
    sys.exit(main())
