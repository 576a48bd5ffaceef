"""The reward curve, drawn as text for the terminal and as a PNG."""

from pathlib import Path

from gymtrain_client.errors import NoStepsError
from gymtrain_client.steps import Step


def smoothed(steps: list[Step], window: int = 5) -> list[float]:
    """Returns the trailing mean of the reward over `window` steps."""
    rewards = [step.reward for step in steps]
    return [sum(rewards[max(0, i - window + 1) : i + 1]) / min(window, i + 1) for i in range(len(rewards))]


def ends(steps: list[Step], window: int = 5) -> tuple[float, float]:
    """Returns the mean reward of the first and of the last `window` steps."""
    rewards = [step.reward for step in steps]
    first, last = rewards[:window], rewards[-window:]
    return sum(first) / len(first), sum(last) / len(last)


def draw_text(run: str, steps: list[Step], width: int = 76, height: int = 18) -> str:
    """Draws the curve in characters.

    Raises:
        NoStepsError: there are no steps.
    """
    import plotext

    _require(run, steps)
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height)
    x = [step.step for step in steps]
    plotext.scatter(x, [step.reward for step in steps], marker="·")
    plotext.plot(x, smoothed(steps), marker="braille")
    plotext.title(f"{run}: mean reward by step (line: mean of the last 5)")
    plotext.xlabel("step")
    return str(plotext.uncolorize(plotext.build()))  # for files and pipes as well as terminals


def draw_png(run: str, steps: list[Step], path: Path) -> None:
    """Writes the curve as a PNG.

    Raises:
        NoStepsError: there are no steps.
    """
    import matplotlib as mpl

    mpl.use("Agg")  # no display on the machines this runs on
    from matplotlib import pyplot

    _require(run, steps)
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120, layout="constrained")
    x = [step.step for step in steps]
    axes.plot(x, [step.reward for step in steps], "o", color="#9bbbd4", markersize=4, label="mean reward of the step")
    axes.plot(x, smoothed(steps), color="#1f5f8b", linewidth=2, label="mean of the last 5 steps")
    axes.set(xlabel="optimizer step", ylabel="reward", title=f"{run}: reward by step")
    axes.set_ylim(bottom=min(0.0, *(step.reward for step in steps)))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def summary(steps: list[Step]) -> str:
    """Says in one line how far the reward rose."""
    first, last = ends(steps)
    times = f"{last / first:.1f} times" if first > 0 else "from nothing"
    return f"mean reward of the first 5 steps {first:.3f}, of the last 5 {last:.3f}: {times}"


def _require(run: str, steps: list[Step]) -> None:
    if not steps:
        raise NoStepsError(f"the trainer of {run} has finished no step yet: see `kubectl gymtrain watch {run}`")
