"""Steps out of a trainer's log: one JSON object per finished optimizer step."""

import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One finished optimizer step."""

    step: int
    reward: float


def parse_steps(lines: Iterable[str]) -> list[Step]:
    """The steps in order. Where a later attempt repeats a step, the later one counts: it is the one kept."""
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
        steps[number] = Step(number, float(record["reward"]))
    return [steps[number] for number in sorted(steps)]


def smoothed(steps: list[Step], window: int = 5) -> list[float]:
    """Trailing mean of the reward over `window` steps."""
    rewards = [step.reward for step in steps]
    return [sum(rewards[max(0, i - window + 1) : i + 1]) / min(window, i + 1) for i in range(len(rewards))]


def ends(steps: list[Step], window: int = 5) -> tuple[float, float]:
    """Mean reward of the first and of the last `window` steps."""
    rewards = [step.reward for step in steps]
    first, last = rewards[:window], rewards[-window:]
    return sum(first) / len(first), sum(last) / len(last)
