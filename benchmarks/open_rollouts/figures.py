"""What the readings of a run come to. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.processes import Usage
from benchmarks.report import Result

_NAME = "open rollouts"
_MIB = 1 << 20
PROCESSES = ("rank 0", "of it the trainer's thread", "rank 0's children", "stand-in")


@dataclass(frozen=True)
class Reading:
    """A moment after a step.

    Attributes:
        at: seconds since the benchmark's start.
        step: that ended last; 0 before the first.
        trained, begun, answered, open: rollouts.
        most_open: that were open at once since rollouts take as long as they do.
        main: rank 0.
        trainer: its main thread, which plays the trainer; the memory is the process'.
        children: the processes that rank 0 began.
        stand_in: its process.
        files: that rank 0 has open.
    """

    at: float
    step: int
    trained: int
    begun: int
    answered: int
    open: int
    most_open: int
    main: Usage
    trainer: Usage
    children: Usage
    stand_in: Usage
    files: int

    @property
    def usages(self) -> tuple[Usage, ...]:
        """In the order of `PROCESSES`."""
        return self.main, self.trainer, self.children, self.stand_in

    @property
    def resident(self) -> int:
        """Bytes, of rank 0 and its children."""
        return (self.main + self.children).resident


@dataclass(frozen=True)
class Row:
    """A figure of each process, in the order of `PROCESSES`; None where it has none of its own."""

    figure: str
    unit: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Found:
    """A whole run.

    Attributes:
        readings: one after each step, and one before the first.
        warm_steps: steps of the warm-up.
        rollouts: that training uses in all.
        end: what rank 0 says at its end (`Training.ended`).
    """

    readings: Sequence[Reading]
    warm_steps: int
    rollouts: int
    end: Mapping[str, Any]

    @property
    def most_open(self) -> int:
        """Rollouts that were open at once after the warm-up."""
        return max(reading.most_open for reading in self._after_warm_up())

    @property
    def lost(self) -> int:
        """Rollouts that agents were asked for and nobody trained on."""
        return self.readings[-1].begun - int(self.end["trained"])

    def full(self) -> list[Reading]:
        """From the end of the first generation that was full, while new rollouts take the places of those that end.

        The one after the warm-up doesn't count: its rollouts get longer and longer, so that they don't all end at once.

        Raises:
            ValueError: there are fewer than two.
        """
        most = self.most_open
        settled = self.readings[self.warm_steps].answered + 2 * most
        found = [one for one in self._after_warm_up() if one.answered >= settled and one.begun < self.rollouts]
        if len(found) < 2:
            raise ValueError("too few rollouts to see growth: more generations, or rollouts that take longer")
        return found

    def generations(self) -> list[Reading]:
        """One after each generation that was full."""
        full = self.full()
        found = [full[0]]
        for reading in full:
            if reading.answered - found[-1].answered >= self.most_open:
                found.append(reading)
        return found

    def _after_warm_up(self) -> Sequence[Reading]:
        return self.readings[self.warm_steps + 1 :]

    def results(self) -> list[Result]:
        """Figures of the whole."""
        first, *_, last = self.full()
        start, most, done = self.readings[0], self.most_open, last.answered - first.answered

        def none(figure: str, value: float) -> Result:
            return Result(_NAME, figure, value, "", aim=0)

        return [
            Result(_NAME, "rollouts trained", self.end["trained"], ""),
            none("lost", self.lost),
            none("trained twice", self.end["trained_twice"]),
            none("with other tokens than the agent sent", self.end["wrong"]),
            *(none(f"groups dropped: {why}", count) for why, count in self.end["dropped_groups"].items()),
            *(none(f"rollouts failed: {why}", count) for why, count in self.end["failed_rollouts"].items()),
            Result(_NAME, "most open at once", most, ""),
            Result(_NAME, "most open files of rank 0", max(one.files for one in self.readings), ""),
            Result(_NAME, "generations between the readings of the full process", done / most, ""),
            Result(_NAME, "growth between them", (last.resident - first.resident) / _MIB, "MiB"),
            Result(_NAME, "memory for each open rollout", (last.resident - start.resident) / most / 1024, "KiB"),
            Result(_NAME, "rollouts per second", done / (last.at - first.at), "/s"),
            Result(_NAME, "the whole run", self.readings[-1].at, "s"),
        ]

    def rows(self) -> list[Row]:
        """Figures of each process."""
        first, *_, last = self.full()
        done, took = last.answered - first.answered, last.at - first.at
        most = max(self.readings, key=lambda reading: reading.resident)

        def memory(when: str, reading: Reading) -> Row:
            main, _, *others = (one.resident / _MIB for one in reading.usages)
            return Row(f"resident {when}", "MiB", (main, None, *others))

        def cpu(figure: str, unit: str, scaled: Callable[[float], float]) -> Row:
            used = (after.cpu - before.cpu for before, after in zip(first.usages, last.usages, strict=True))
            return Row(figure, unit, tuple(map(scaled, used)))

        return [
            memory("before the first rollout", self.readings[0]),
            *(memory(f"after full generation {number}", one) for number, one in enumerate(self.generations(), 1)),
            memory("when the last rollout begins", last),
            memory("when all are trained", self.readings[-1]),
            memory("when rank 0 and children have most", most),
            cpu("CPU for 1,000 rollouts", "s", lambda seconds: seconds / done * 1000),
            cpu("share of a core", "%", lambda seconds: seconds / took * 100),
        ]


def rows_as_table(rows: Sequence[Row]) -> str:
    """A Markdown table with a column for each process."""
    lines = [f"| figure | {' | '.join(PROCESSES)} |", "|---|" + "---|" * len(PROCESSES)]
    for row in rows:
        values = " | ".join("" if value is None else f"{value:.2f} {row.unit}" for value in row.values)
        lines.append(f"| {row.figure} | {values} |")
    return "\n".join(lines)


def as_json(results: Sequence[Result], rows: Sequence[Row]) -> dict[str, Any]:
    """The same for programs: numbers by figure, and by process where each has its own."""
    whole: dict[str, Any] = {result.figure: round(result.value, 3) for result in results}
    for row in rows:
        values = zip(PROCESSES, row.values, strict=True)
        whole[f"{row.figure}, {row.unit}"] = {name: round(value, 3) for name, value in values if value is not None}
    return whole
