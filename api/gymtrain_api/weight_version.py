"""The label of a set of weights, `run:attempt:number`: vLLM carries it, and each token is recorded under it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class WeightVersion:
    """One set of weights. Within a run, later versions compare greater.

    Attributes:
        run: name of the run.
        attempt: attempt of the run, from 1.
        number: sync within the attempt, from 1; 0 for the weights that the attempt started with.
    """

    run: str
    attempt: int
    number: int

    def __str__(self) -> str:
        """The label."""
        return f"{self.run}:{self.attempt}:{self.number}"

    @classmethod
    def parse(cls, label: str | None) -> WeightVersion | None:
        """The version that a label names, or None if it isn't such a label, like vLLM's own `default`."""
        run, _, numbers = (label or "").partition(":")
        attempt, _, number = numbers.partition(":")
        if not run or not (attempt.isdecimal() and number.isdecimal()):
            return None
        return cls(run, int(attempt), int(number))

    @classmethod
    def number_in(cls, label: str, run: str, attempt: int) -> int | None:
        """The number in a label of this attempt of this run, or None for any other label."""
        version = cls.parse(label)
        return version.number if version is not None and version.is_of(run, attempt) else None

    def is_of(self, run: str, attempt: int) -> bool:
        """Whether the version belongs to this attempt of this run."""
        return (self.run, self.attempt) == (run, attempt)
