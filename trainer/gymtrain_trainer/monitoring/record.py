"""The record of each step: rewards.csv for people and tools, the board for the operator, a line in the log."""

import contextlib
import csv
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol

from gymtrain_trainer.rollouts.buffer import UsedGroup

REWARDS_FILE = "rewards.csv"


@dataclass(frozen=True)
class StepRecord:
    """One row of rewards.csv."""

    step: int
    reward: float  # mean over the rollouts of the step
    reward_std: float  # mean over its groups' deviations
    groups: int
    staleness: float  # mean over the rollouts, in weight versions
    tokens: int  # completion tokens trained
    seconds: float  # since the step before
    time: float  # seconds since the epoch
    rollout_wait_s: float | None = None  # of `seconds`, where it is known
    weight_sync_s: float | None = None  # likewise

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens trained per second of wall time."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def step_record(
    step: int,
    used: Sequence[UsedGroup],
    seconds: float,
    now: float | None = None,
    numbers: Mapping[str, float] | None = None,
) -> StepRecord:
    """The record of a step that used these groups (at least one). `numbers`: where its time went, as far as known."""
    waited, synced = ((numbers or {}).get(name) for name in ("rollout_wait_s", "weight_sync_s"))
    return StepRecord(
        step=step,
        reward=round(statistics.fmean(reward for one in used for reward in one.group.rewards), 6),
        reward_std=round(statistics.fmean(one.group.reward_deviation for one in used), 6),
        groups=len(used),
        staleness=round(statistics.fmean(age for one in used for age in one.staleness), 4),
        tokens=sum(sample.trained_tokens for one in used for sample in one.group.samples),
        seconds=round(seconds, 3),
        time=round(time.time() if now is None else now, 3),
        rollout_wait_s=round(waited, 3) if waited is not None else None,
        weight_sync_s=round(synced, 3) if synced is not None else None,
    )


def step_line(
    record: StepRecord, used: Sequence[UsedGroup], version: Callable[[int], str], numbers: Mapping[str, float]
) -> str:
    """The step as one line of JSON for the pod's log, which `kubectl gymtrain curve` reads.

    `version`: the label of a model version. `numbers`: where the step's time went, and how far its samples are from the
    weights.
    """
    versions = sorted({number for one in used for sample in one.group.samples for number in sample.versions})
    more = {
        "rollouts": sum(len(one.group.rewards) for one in used),
        "samples": sum(len(one.group.samples) for one in used),
        "weight_versions": [version(number) for number in versions],
        **numbers,
    }
    known = {name: value for name, value in asdict(record).items() if value is not None}
    return json.dumps({"event": "step", **known, **more})


class StepRow(Protocol):
    """A dataclass whose first field is the step."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class StepFile[Row: StepRow]:
    """Appends rows to a CSV file, which has the row's fields as columns; the first of them is the step."""

    def __init__(self, path: Path, row: type[Row]) -> None:
        self._path = path
        self._columns = [field.name for field in fields(row)]

    def begin(self, step: int) -> None:
        """Starts the file, or drops what an earlier attempt wrote after `step`, where this one resumes."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        if step and self._path.exists():
            with self._path.open(newline="") as file:
                kept = [row for row in list(csv.reader(file))[1:] if row and int(row[0]) <= step]
        # An earlier release may have had fewer columns; those of a later one come behind them.
        kept = [row + [""] * (len(self._columns) - len(row)) for row in kept]
        with self._path.open("w", newline="") as file:
            csv.writer(file).writerows([self._columns, *kept])

    def read(self) -> list[dict[str, str]]:
        """What is in it, by column."""
        if not self._path.exists():
            return []
        with self._path.open(newline="") as file:
            return list(csv.DictReader(file))

    def append(self, *records: Row) -> None:
        """Adds rows.

        Raises:
            OSError: the volume doesn't take them; the file is as before.
        """
        before = self._path.stat().st_size if self._path.exists() else 0
        try:
            with self._path.open("a", newline="") as file:
                csv.writer(file).writerows(map(astuple, records))
        except OSError:
            with contextlib.suppress(OSError):  # half a row is worse than none
                os.truncate(self._path, before)
            raise


class RewardsFile(StepFile[StepRecord]):
    """rewards.csv."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, StepRecord)
