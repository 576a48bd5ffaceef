"""How much the rollout side is given to do: what the processes of the benchmark have to agree about."""

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True)
class Load:
    """A run.

    Attributes:
        rollouts: open at once.
        group_size: rollouts of a group.
        step: rollouts of an optimizer step.
        generations: times `rollouts` that are trained after the warm-up.
        staleness: spec.rollout.maxStaleness; every step syncs the weights.
        turns: model calls of a rollout, each of whose prompts goes on from the one before.
        prompt: tokens that each call's prompt has beyond that.
        sampled: tokens of each call.
        warm_seconds: that a rollout takes on average during the warm-up.
        seconds: that it takes later.
        jitter: share of these by which a rollout takes more or less, at most.
        files: open files that the trainer is told that it has; 0: as many as the kernel grants it.
    """

    rollouts: int = 16_384
    group_size: int = 16
    step: int = 2048
    generations: int = 6
    staleness: int = 16
    turns: int = 8
    prompt: int = 32
    sampled: int = 64
    warm_seconds: float = 2.0
    seconds: float = 120.0
    jitter: float = 0.5
    files: int = 0

    @property
    def groups_per_step(self) -> int:
        """Of an optimizer step."""
        return self.step // self.group_size

    @property
    def tokens(self) -> int:
        """Of a whole rollout."""
        return self.turns * (self.prompt + self.sampled)

    def to_text(self) -> str:
        """For another process' command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The same load."""
        return cls(**json.loads(text))
