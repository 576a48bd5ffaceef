"""What people are told of a rollout that ended."""

from dataclasses import dataclass

from gymtrain_trainer.rollouts.hops import Hops
from gymtrain_trainer.rollouts.origins import Rollout


@dataclass(frozen=True)
class RolloutSummary:
    """What people are told of a rollout. Its tokens are in the samples.

    Attributes:
        versions: that sampled parts of it, oldest first; empty where nobody asked.
        scored: the reward is the environment's.
        text: what the model said.
        tokens: that the model sampled.
        forks: turns whose history the chat template rewrote.
        constrained: turns that a grammar held.
        replaced: sampling settings that its calls asked for, and the gateway replaced by the run's; once a call.
        seconds: that it took, by the last of its `tries`.
        hops: where they went.
        conversation: packed (transcript.py), where the run keeps records of rollouts.
    """

    versions: tuple[int, ...]
    reward: float
    scored: bool
    text: str
    tokens: int
    turns: int
    forks: int
    truncated: bool
    constrained: int
    replaced: tuple[str, ...]
    seconds: float
    tries: int
    hops: Hops
    conversation: bytes = b""

    @classmethod
    def of(cls, rollout: Rollout, conversation: bytes = b"") -> "RolloutSummary":
        """Of a finished one; each of its model calls is told where its conversation is."""
        return cls(
            versions=rollout.versions,
            reward=rollout.answer.reward,
            scored=rollout.answer.scored,
            text=rollout.answer.text,
            tokens=rollout.answer.generated,
            turns=len(rollout.answer.turns),
            forks=rollout.forks,
            truncated=rollout.truncated,
            constrained=sum(origin.constrained for origin in rollout.origins),
            replaced=tuple(name for origin in rollout.origins for name in origin.replaced),
            seconds=rollout.answer.seconds,
            tries=rollout.answer.tries,
            hops=rollout.hops(each=bool(conversation)),
            conversation=conversation,
        )

    @property
    def version(self) -> int | None:
        """The oldest."""
        return self.versions[0] if self.versions else None
