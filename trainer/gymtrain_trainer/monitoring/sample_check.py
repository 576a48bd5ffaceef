"""Debugging: was every trained token really sampled by the weights that its sample claims?

`GYMTRAIN_CHECK_SAMPLES` in the trainer's environment switches it on: the share of samples to check, 1 for all. The
trainer keeps the weights of the last maxStaleness + 1 versions on the CPU, computes each sample's log-probabilities
again and compares them with those that vLLM gave. It is for small models: each check is a forward pass on the CPU.

A sample of which several versions sampled a part (a weight sync in the middle of an answer) claims them all: each token
has to agree with one of them. Tolerances of the mean difference: 0.005 where vLLM computes in float32, which tells one
version from the next at usual learning rates; 0.1 in half precision, which tells foreign weights only, and there more
for few tokens: vLLM's own rounding moves one by 0.04 on average (docs/recorded/gpu/cluster.md).

    {"event": "sample_check", "step": 3, "samples": 32, "mean": 2e-06, "worst": 1e-05, "wrong": 0, "unchecked": 0}
    {"event": "sample_check_total", "samples": 96, "wrong": 0, "unchecked": 0}
"""

import json
import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gymtrain_api.wiring import ENV_CHECK_SAMPLES
from gymtrain_trainer.errors import SettingsError
from gymtrain_trainer.framework import TrainingSample
from gymtrain_trainer.progress import ProgressBoard

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tolerance:
    """Mean difference of log-probabilities up to which a sample is right.

    Attributes:
        mean: of a long one.
        token: what one token may differ by beyond that; of n tokens, the mean may by the square root of n less.
    """

    mean: float
    token: float = 0.0

    def of(self, tokens: int) -> float:
        """Of a sample with so many."""
        return self.mean + self.token / math.sqrt(tokens)


_FULL = Tolerance(0.005)
_HALF = Tolerance(0.1, 0.6)


def share_to_check(environ: Mapping[str, str]) -> float:
    """The share of samples to check; 0 where checking is off.

    Raises:
        SettingsError: the variable is no number from 0 to 1.
    """
    text = environ.get(ENV_CHECK_SAMPLES, "") or "0"
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise SettingsError(
            f"environment variable {ENV_CHECK_SAMPLES} is {text!r}; it must be a share of samples from 0 to 1"
        )
    return share


def tolerance_of(dtype: str | None) -> Tolerance:
    """By the type of vLLM's weights; where it isn't known, as of half precision."""
    return _FULL if dtype == "float32" else _HALF


class Weights(Protocol):
    """The versions to check against; KeptWeights is one."""

    def watch(
        self, version: int, stream: Iterator[tuple[str, Any]], dtype: str | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Sees a version on its way to vLLM, where it will be of that type."""
        ...

    def versions(self) -> list[int]:
        """Versions that are kept."""
        ...

    def log_probs(self, config: Any, version: int, ids: Sequence[int], temperature: float) -> list[float]:
        """Log-probability of each token after the first."""
        ...


class SampleChecker:
    """Checks samples as the trainer takes them, in the trainer's thread."""

    def __init__(
        self,
        weights: Weights,
        config: Callable[[], Any],
        board: ProgressBoard,
        *,
        temperature: float,
        share: float,
    ) -> None:
        """`config`: transformers' configuration of the model, once it is loaded."""
        self.weights = weights
        self._config = config
        self._board = board
        self._temperature = temperature
        self._tolerance = tolerance_of(None)
        self._share = share
        self._random = random.Random(0)  # noqa: S311 - picks samples
        self._differences: list[float] = []  # mean of each sample since the last report
        self._worst = 0.0
        self._wrong = self._unchecked = 0
        self._total = {"samples": 0, "wrong": 0, "unchecked": 0}

    def watch(
        self, version: int, stream: Iterator[tuple[str, Any]], dtype: str | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Sees a version on its way to vLLM, where it will be of that type."""
        self._tolerance = tolerance_of(dtype)
        return self.weights.watch(version, stream, dtype)

    def take(self, sample: TrainingSample) -> None:
        """Checks a sample that is going to be trained on."""
        if self._random.random() >= self._share:
            return
        if sample.constrained:  # its log-probabilities are those among the tokens that a grammar allowed
            self._unchecked += 1
            return
        try:
            known = self._known(sample)
            tokens = self._differ(sample, known) if known else []
        except ValueError as error:
            log.warning("a sample can't be checked: %s", error)
            tokens = []
        if not tokens:
            self._unchecked += 1
            return
        mean = sum(tokens) / len(tokens)
        self._differences.append(mean)
        self._worst = max(self._worst, *tokens)
        if not mean <= self._tolerance.of(len(tokens)):  # NaN is wrong
            self._wrong += 1
            log.error(
                "WRONG SAMPLE: group %d claims weight version %s, but its log-probabilities are %.3g away; by kept "
                "version: %s",
                sample.group_id,
                "/".join(map(str, sample.versions)),
                mean,
                {version: round(_mean(self._differ(sample, [version])), 5) for version in self.weights.versions()},
            )

    def report(self, step: int) -> None:
        """One line about the samples since the last one."""
        found = self._differences
        counts = {"samples": len(found), "wrong": self._wrong, "unchecked": self._unchecked}
        line = {"event": "sample_check", "step": step, "mean": _mean(found), "worst": self._worst}
        print(json.dumps(line | counts), flush=True)
        for name, count in counts.items():
            self._total[name] += count
        self._board.tally("checked_samples", "wrong", by=self._wrong)
        self._board.tally("checked_samples", "right", by=len(found) - self._wrong)
        self._differences, self._worst, self._wrong, self._unchecked = [], 0.0, 0, 0

    def total(self) -> None:
        """The last line: whether any wrong sample was trained on."""
        print(json.dumps({"event": "sample_check_total", **self._total}), flush=True)

    def _known(self, sample: TrainingSample) -> list[int]:
        kept = self.weights.versions()
        return [version for version in sample.versions if version in kept]

    def _differ(self, sample: TrainingSample, versions: Sequence[int]) -> list[float]:
        """|difference| of each trained token by the version that fits it best."""
        ids = sample.token_ids
        ours = [self.weights.log_probs(self._config(), version, ids, self._temperature) for version in versions]
        return [
            min(abs(sample.log_probs[place] - scores[place - 1]) for scores in ours)
            for place in range(1, len(ids))
            if sample.mask[place]
        ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
