"""The steps of a run out of its trainer's log, which has one line of JSON for each finished optimizer step."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Step:
    """One finished optimizer step; `values`: all that its line says."""

    step: int
    reward: float
    values: Mapping[str, Any] = field(default_factory=dict, compare=False)


def parse_steps(lines: Iterable[str]) -> list[Step]:
    """Returns the steps in order. Where a later attempt repeats a step, the later one counts."""
    steps: dict[int, Step] = {}
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("event") != "step" or not isinstance(record.get("reward"), int | float):
            continue
        number = int(record["step"])
        steps = {k: v for k, v in steps.items() if k < number}
        values = {name: value for name, value in record.items() if name != "event"}
        steps[number] = Step(number, float(record["reward"]), values)
    return [steps[number] for number in sorted(steps)]
