"""What a chain learned: its steps out of the trainer's log, the CSV of many chains, and their summary. Pure but for
files."""

import csv
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENDS = 10  # steps of each end that a mean is of

COLUMNS = ("side", "staleness", "correction", "seed", "step", "reward", "staleness_measured", "kl", "ratio")


@dataclass(frozen=True)
class Step:
    """One finished optimizer step.

    Attributes:
        step: from 1.
        reward: mean over its rollouts.
        staleness: mean over its samples, in weight versions.
        kl: of the weights that sampled against those that train, by token.
        ratio: of a token's probability under the latter to that under the former, mean.
    """

    step: int
    reward: float
    staleness: float | None = None
    kl: float | None = None
    ratio: float | None = None


@dataclass(frozen=True)
class Curve:
    """The steps of one chain.

    Attributes:
        side: ours or trl.
        staleness: the highest, in weight versions.
        correction: the mode.
        seed: its seed.
        steps: in order; at least one.
    """

    side: str
    staleness: int
    correction: str
    seed: int
    steps: tuple[Step, ...]

    @property
    def last(self) -> list[float]:
        """Rewards of the last steps."""
        return [step.reward for step in self.steps[-ENDS:]]


@dataclass(frozen=True)
class Comparison:
    """Ours against TRL's: the mean of the last steps' rewards, over seeds.

    Attributes:
        staleness: ours.
        correction: ours.
        ours: mean.
        trl: mean.
        seeds_sd: standard deviation of TRL's means of the last steps over its seeds; None with one seed.
        steps_sd: of TRL's rewards of the last steps, of all seeds together.
    """

    staleness: int
    correction: str
    ours: float
    trl: float
    seeds_sd: float | None
    steps_sd: float

    def __str__(self) -> str:
        deviations = {"over seeds": self.seeds_sd, "over steps": self.steps_sd}
        verdicts = [
            f"{deviation:.3f} {name}: {'reached' if self.ours >= self.trl - deviation else 'MISSED'}"
            for name, deviation in deviations.items()
            if deviation is not None
        ]
        return (
            f"ours (maxStaleness {self.staleness}, correction {self.correction}) {self.ours:.3f}, TRL {self.trl:.3f}; "
            f"aim: within one standard deviation of TRL's or above ({'; '.join(verdicts)})"
        )


def steps_of(lines: Iterable[str]) -> tuple[Step, ...]:
    """The steps in a trainer's log, of either side; lines that are cut or something else are left out."""
    found: dict[int, Step] = {}
    for line in lines:
        if not line.startswith('{"event": "step"'):
            continue
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if isinstance(record.get("reward"), int | float):
            numbers = [record.get(name) for name in ("staleness", "kl", "ratio")]
            found[record["step"]] = Step(record["step"], float(record["reward"]), *numbers)
    return tuple(found[step] for step in sorted(found))


def append(path: Path, curve: Curve) -> None:
    """Adds a curve to a CSV file, which begins with the names of its columns."""
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(COLUMNS)
        one = (curve.side, curve.staleness, curve.correction, curve.seed)
        for step in curve.steps:
            writer.writerow((*one, step.step, step.reward, step.staleness, step.kl, step.ratio))


def read(path: Path) -> list[Curve]:
    """The curves of a CSV file, in the order of their first rows. Of a chain that ran twice, the later one."""
    steps: dict[tuple[str, int, str, int], list[Step]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            one = (row["side"], int(row["staleness"]), row["correction"], int(row["seed"]))
            numbers = [_number(row, name) for name in ("staleness_measured", "kl", "ratio")]
            step, own = Step(int(row["step"]), float(row["reward"]), *numbers), steps.setdefault(one, [])
            if own and own[-1].step >= step.step:
                own.clear()
            own.append(step)
    return [Curve(*one, tuple(own)) for one, own in steps.items()]


def _number(row: Mapping[str, str], name: str) -> float | None:
    return float(row[name]) if row[name] else None


def table(curves: Iterable[Curve]) -> str:
    """Rows of Markdown: first and last rewards, and how stale the samples were."""
    head = ["side", "maxStaleness", "correction", "seed", "steps", f"first {ENDS}", f"last {ENDS}", "staleness", "kl"]
    rows = [head, ["---"] * len(head)]
    for curve in curves:
        one = [curve.side, str(curve.staleness), curve.correction, str(curve.seed), str(len(curve.steps))]
        first = _mean([step.reward for step in curve.steps[:ENDS]], 3)
        last = f"{_mean(curve.last, 3)} ± {statistics.stdev(curve.last):.3f}" if len(curve.last) > 1 else "-"
        staleness = _mean([step.staleness for step in curve.steps], 2)
        rows.append([*one, first, last, staleness, _mean([step.kl for step in curve.steps], 5)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _mean(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.fmean(known):.{digits}f}" if known else "-"


def comparisons(curves: Sequence[Curve]) -> list[Comparison]:
    """Each of ours with TRL's. Only chains that came as far as any count: rewards grow with the steps."""
    most = max((curve.steps[-1].step for curve in curves), default=0)
    whole = [curve for curve in curves if curve.steps[-1].step == most]
    theirs = [curve.last for curve in whole if curve.side == "trl"]
    if not theirs:
        return []
    ours: dict[tuple[int, str], list[list[float]]] = {}
    for curve in whole:
        if curve.side == "ours":
            ours.setdefault((curve.staleness, curve.correction), []).append(curve.last)
    means = [statistics.fmean(last) for last in theirs]
    return [
        Comparison(
            staleness=staleness,
            correction=correction,
            ours=statistics.fmean(statistics.fmean(last) for last in lasts),
            trl=statistics.fmean(means),
            seeds_sd=statistics.stdev(means) if len(means) > 1 else None,
            steps_sd=statistics.stdev([reward for last in theirs for reward in last]),
        )
        for (staleness, correction), lasts in ours.items()
    ]
