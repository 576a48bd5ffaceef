"""What the trainer's process and the rollouts' process tell each other."""

from dataclasses import dataclass

from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import DropReason
from gymtrain_trainer.rollouts.evaluate import Evaluated
from gymtrain_trainer.rollouts.group import Group, Lost
from gymtrain_trainer.rollouts.guard import Look
from gymtrain_trainer.rollouts.summary import RolloutSummary

# --- to the rollouts' process; RunnerSettings come first ---


@dataclass(frozen=True)
class Begin:
    """Run a group. `number` counts from 1."""

    number: int
    task: Task


@dataclass(frozen=True)
class Evaluate:
    """Make a rollout of an evaluation of that model version. `number` counts from 1, by itself."""

    number: int
    task: Task
    version: int


@dataclass(frozen=True)
class EndEvaluation:
    """Nobody waits for that rollout any more."""

    number: int


@dataclass(frozen=True)
class NewVersion:
    """The trainer's next model version, and its label."""

    model_version: int
    label: str


@dataclass(frozen=True)
class Looked:
    """The answer to `AskLook`."""

    look: Look


type ToRunner = Begin | Evaluate | EndEvaluation | NewVersion | Looked

# --- to the trainer's process ---


@dataclass(frozen=True)
class Ended:
    """The group can be used."""

    number: int
    group: Group


@dataclass(frozen=True)
class Dropped:
    """It can't be used."""

    number: int
    reason: DropReason
    message: str
    rollouts: tuple[RolloutSummary, ...] = ()


@dataclass(frozen=True)
class EvaluationEnded:
    """How a rollout of an evaluation ended."""

    number: int
    evaluated: Evaluated


@dataclass(frozen=True)
class Broken:
    """An error that should not have been: the trainer ends by it."""

    error: str


@dataclass(frozen=True)
class TryFailed:
    """One try of a rollout failed."""

    error: str


@dataclass(frozen=True)
class RolloutLost:
    """A rollout of the agent failed for good."""

    agent: str
    lost: Lost


@dataclass(frozen=True)
class Running:
    """Rollouts that run now, of the groups up to number `begun`."""

    rollouts: int
    begun: int


@dataclass(frozen=True)
class AskLook:
    """What do the vLLM servers hold? One question at a time."""


type ToTrainer = Ended | Dropped | EvaluationEnded | Broken | TryFailed | RolloutLost | Running | AskLook
