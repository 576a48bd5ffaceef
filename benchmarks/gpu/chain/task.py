"""What both sides train on: sums of two one-digit numbers (reasoning-gym's chain_sum), of which some take longer."""

import functools
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

GENERATIONS = 8
ANSWER_TOKENS = 16
ROWS = 4000
_SHOWN = (("2 + 6", "8"), ("9 - 4", "5"))  # worked examples: without them the model learns slowly

type Slow = Literal["none", "rollouts", "rows"]


@dataclass(frozen=True)
class Tails:
    """Which rollouts take longer, as an agent's tools would make them: one in `every`, or all of one row in `every`."""

    slow: Slow
    seconds: float = 6.0
    every: int = 10

    def of_row(self, number: int) -> bool:
        """Whether all rollouts of a row are slow."""
        return self.slow == "rows" and number % self.every == 0

    def delay(self, number: int) -> float:
        """Seconds that a rollout of the row takes beside the model's."""
        if self.of_row(number) or (self.slow == "rollouts" and random.random() * self.every < 1):  # noqa: S311 - no secret
            return self.seconds
        return 0.0


def slow_shares(tails: Tails, trained: Sequence[int], drawn: Sequence[int]) -> dict[str, float]:
    """Share of slow rows among those that were trained on, and among those that were drawn; for a benchmark's line."""
    shares = {"slow_share": trained, "slow_share_of_data": drawn}
    return {name: round(statistics.fmean(map(tails.of_row, numbers)), 4) for name, numbers in shares.items()}


@functools.cache
def rows() -> list[dict[str, Any]]:
    """Prompt and the environment's entry, by number."""
    import reasoning_gym

    made = reasoning_gym.create_dataset(
        "chain_sum", size=ROWS, seed=1, min_terms=2, max_terms=2, min_digits=1, max_digits=1
    )
    return [{"prompt": _prompt(entry["question"]), "entry": entry} for entry in made]


def _prompt(question: str) -> list[dict[str, str]]:
    ask = "State the final answer to the following arithmetic problem: {} ="
    shown = [
        {"role": role, "content": content}
        for sum_, answer in _SHOWN
        for role, content in (("user", ask.format(sum_)), ("assistant", answer))
    ]
    return [*shown, {"role": "user", "content": question}]


@functools.cache
def _scorer() -> Callable[[str, Mapping[str, Any]], float]:
    import reasoning_gym
    from reasoning_gym.utils import extract_answer

    score_answer = reasoning_gym.get_score_answer_fn("chain_sum")
    return lambda text, entry: float(score_answer(answer=extract_answer(text) or text.strip(), entry=entry))


def score(text: str, entry: Mapping[str, Any]) -> float:
    """The reward of an answer."""
    return _scorer()(text, entry)
