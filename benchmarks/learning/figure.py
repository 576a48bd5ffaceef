"""The curves as SVG: a panel for each environment, held-out rewards above, training rewards below."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.results import HELD_OUT, TRAIN, Score, by_variant
from benchmarks.learning.runs import ENVIRONMENTS, Kind

_TITLES = {
    "sums": "reasoning_gym: sums",
    "format": "format_verification: form",
    "counter": "example_session_state_mgmt: tools",
}
_COLOURS = {Kind.TRAINED: "#1f5f8b", Kind.RATE_ZERO: "#d1662a", Kind.UNTRAINED: "#5a5a5a"}
_LABELS = {Kind.TRAINED: "trained", Kind.RATE_ZERO: "learning rate 0", Kind.UNTRAINED: "untrained"}


def draw(scores: Sequence[Score], path: Path) -> None:
    """Writes the figure; the same scores make the same file."""
    import matplotlib as mpl

    mpl.use("Agg")  # no display on the machines this runs on
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "learning", "font.size": 9}
    from matplotlib import pyplot

    names = [name for name in ENVIRONMENTS if any(score.environment == name for score in scores)]
    size = (1.2 + 3.4 * len(names), 5.2)
    figure, axes = pyplot.subplots(
        2, len(names), figsize=size, sharex="col", sharey=True, squeeze=False, layout="constrained"
    )
    rows: Any = axes
    for column, name in enumerate(names):
        own = [score for score in scores if score.environment == name]
        for row, of in enumerate((HELD_OUT, TRAIN)):
            _panel(rows[row][column], own, of)
        rows[0][column].set_title(_TITLES[name])
        rows[1][column].set_xlabel("optimizer step")
    for row, title in enumerate(("held-out reward, 95 % interval", "training reward")):
        rows[row][0].set_ylabel(title)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def _panel(axes: Any, scores: Sequence[Score], of: str) -> None:
    last = max((score.step for score in scores), default=0)
    labelled: set[Kind] = set()
    for variant, own in by_variant(scores).items():
        points = sorted((score for score in own if score.of == of), key=lambda score: score.step)
        if not points:
            continue
        # Each kind is named once in the legend.
        label = None if variant.kind in labelled else _LABELS[variant.kind]
        labelled.add(variant.kind)
        look = {"color": _COLOURS[variant.kind], "linewidth": 1.4, "label": label}
        if variant.kind is Kind.UNTRAINED:
            axes.axhline(points[0].reward, linestyle="--", **look)
            axes.fill_between(
                [0, last], points[0].low, points[0].high, color=_COLOURS[variant.kind], alpha=0.15, linewidth=0
            )
            continue
        steps, rewards = [point.step for point in points], [point.reward for point in points]
        axes.plot(steps, rewards, **look)
        if of == HELD_OUT:
            low, high = [point.low for point in points], [point.high for point in points]
            axes.fill_between(steps, low, high, color=_COLOURS[variant.kind], alpha=0.15, linewidth=0)
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)
