"""What runs learned: out of the trainer's log, to and from a CSV, and as a table. Pure but for files."""

import csv
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.learning.runs import Kind, Variant

ENDS = 5
"""Steps of either end of a training that its mean rewards are of."""
RISE = 0.15
"""That is asked for, of the training reward and of the held-out one."""
_T = 2.776  # Student's, two-sided 95 %, for ENDS - 1 degrees of freedom
TRAIN, HELD_OUT = "train", "held-out"
BEGIN = "<!-- begin results: made by `python -m benchmarks.learning` -->"
END = "<!-- end results -->"


@dataclass(frozen=True)
class Score:
    """One point of a curve.

    Attributes:
        environment, kind, seed: of the run.
        of: TRAIN or HELD_OUT.
        step: that was taken, or after which was evaluated; 0 before training.
        reward: mean.
        low, high: its 95 % interval over tasks; None of a training step.
        size: what the mean is of: rollouts of a training step, tasks of an evaluation.
    """

    environment: str
    kind: Kind
    seed: int
    of: str
    step: int
    reward: float
    low: float | None
    high: float | None
    size: int

    @property
    def variant(self) -> Variant:
        """The run."""
        return Variant(self.environment, self.kind, self.seed)


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Change:
    """The same reward at the start and at the end."""

    start: Interval
    end: Interval

    @property
    def rose(self) -> bool:
        """By RISE at least, to above the interval of the start."""
        return self.end.mean - self.start.mean >= RISE and self.end.mean > self.start.high


def scores_of(variant: Variant, lines: Iterable[str]) -> list[Score]:
    """What a trainer's log tells of the run, in the order of the log; other lines are left out."""
    found: list[Score] = []
    for line in lines:
        if not line.startswith('{"event": '):
            continue
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if record["event"] == "step" and isinstance(record.get("reward"), int | float):
            numbers = (TRAIN, record["step"], record["reward"], None, None, record["samples"])
        elif record["event"] == "evaluation":
            row = next(iter(record["environments"].values()))  # of all environments
            if "reward" not in row:  # nothing was scored
                continue
            interval = (row.get("reward_low"), row.get("reward_high"))
            numbers = (HELD_OUT, record["step"], row["reward"], *interval, int(row["tasks"]))
        else:
            continue
        found.append(Score(variant.environment, variant.kind, variant.seed, *numbers))
    return found


def read(path: Path) -> list[Score]:
    """The CSV's rows; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [_score(row) for row in csv.DictReader(file)]


def write(path: Path, scores: Sequence[Score]) -> None:
    """All of them, by run, kind and step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Score)], lineterminator="\n")
        writer.writeheader()
        for score in sorted(scores, key=lambda one: (one.variant, one.of, one.step)):
            writer.writerow(asdict(score))


def held_out(scores: Sequence[Score]) -> Change | None:
    """Of one run: its first and last evaluation; None where it has none with an interval."""
    points = _points(scores, HELD_OUT)
    if not points or any(point.low is None or point.high is None for point in (points[0], points[-1])):
        return None
    start, end = (Interval(point.reward, point.low or 0.0, point.high or 0.0) for point in (points[0], points[-1]))
    return Change(start, end)


def training(scores: Sequence[Score]) -> Change | None:
    """Of one run: means of its first and last steps' rewards; None where these would overlap.

    A step's questions are others than those of the step before, so its reward is one observation, and the interval
    Student's over ENDS of them.
    """
    rewards = [point.reward for point in _points(scores, TRAIN)]
    if len(rewards) < 2 * ENDS:
        return None
    return Change(_interval(rewards[:ENDS]), _interval(rewards[-ENDS:]))


def by_variant(scores: Iterable[Score]) -> dict[Variant, list[Score]]:
    """Scores of each run; runs in order."""
    found: dict[Variant, list[Score]] = {}
    for score in scores:
        found.setdefault(score.variant, []).append(score)
    return {variant: found[variant] for variant in sorted(found)}


def table(scores: Iterable[Score]) -> str:
    """A row for each run, as Markdown."""
    lines = [
        f"| Environment | Run | Seed | Steps | Held-out, start | end | Training, first {ENDS} | last {ENDS} | Rose |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for variant, own in by_variant(scores).items():
        evaluated, trained = held_out(own), training(own)
        steps = max((point.step for point in own), default=0)
        cells = [
            variant.environment,
            variant.kind,
            str(variant.seed),
            str(steps),
            *_cells(evaluated, same=steps == 0),
            *_cells(trained),
            "" if variant.kind is Kind.UNTRAINED else _verdict(evaluated, trained),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(text: str, scores: Sequence[Score], figure: str) -> str:
    """A page with the table and the figure between its marks, in place of what was there.

    Raises:
        ValueError: the page lacks the marks.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the lines {BEGIN!r} and {END!r}, between which the results go")
    shown = f"{table(scores)}\n\n![Rewards by optimizer step]({figure})" if scores else "None yet."
    return f"{before}{begin}\n\n{shown}\n\n{end}{after}"


def _cells(change: Change | None, *, same: bool = False) -> tuple[str, str]:
    if change is None:
        return "", ""
    return str(change.start), "" if same else str(change.end)


def _verdict(evaluated: Change | None, trained: Change | None) -> str:
    both = [change is not None and change.rose for change in (evaluated, trained)]
    return {(True, True): "both", (True, False): "held-out", (False, True): "training"}.get((both[0], both[1]), "no")


def _points(scores: Sequence[Score], of: str) -> list[Score]:
    return sorted((score for score in scores if score.of == of), key=lambda score: score.step)


def _interval(rewards: Sequence[float]) -> Interval:
    mean = statistics.fmean(rewards)
    half = _T * statistics.stdev(rewards) / math.sqrt(len(rewards))
    return Interval(mean, mean - half, mean + half)


def _score(row: dict[str, str]) -> Score:
    low, high = (float(row[name]) if row[name] else None for name in ("low", "high"))
    return Score(
        row["environment"],
        Kind(row["kind"]),
        int(row["seed"]),
        row["of"],
        int(row["step"]),
        float(row["reward"]),
        low,
        high,
        int(row["size"]),
    )
