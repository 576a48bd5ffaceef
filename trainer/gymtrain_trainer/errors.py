"""Errors of the trainer, and the exit code that each ends in.

TrainerError                 exit code 1: a new attempt may help
├── RefusedError             exit code 78: trying again can't help
│   ├── SettingsError        `trainer.config` or the environment of the process
│   ├── ResumeError          spec.resumeFrom names no checkpoint that this run could resume from
│   ├── ModelFolderError     the model can't be loaded from its folder
│   └── DataError            the indexed dataset is unreadable, or names agents that don't exist
├── FetchError               the model couldn't be fetched from the hub
├── ServersError             servers didn't come up before the deadline
├── RolloutsStalledError     no usable rollout for too long
├── WorkerDiedError          the rollout worker's thread ended
├── StorageError             the checkpoint volume is full or broken
└── InterruptedBySignal      SIGTERM

RolloutError                 one try of a rollout failed, with its kind; never leaves the rollout worker
├── AgentError               a Gym server answered with an error, or not at all
│   └── RowRefusedError      the row doesn't fit a server: no rollout of its group can succeed
└── AnswerError              it answered, but the answer can't be trained on

GroupDroppedError            a group can't be used; never leaves the rollout worker
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from gymtrain_api.wiring import ExitCode


class TrainerError(Exception):
    """Base of every error that ends an attempt."""

    exit_code = ExitCode.RETRY


class RefusedError(TrainerError):
    """The run can't work as it is; the message says what to change."""

    exit_code = ExitCode.REFUSED


class SettingsError(RefusedError):
    """`trainer.config` is wrong, or the process lacks part of its environment."""


class ResumeError(RefusedError):
    """`spec.resumeFrom` names no checkpoint, or one that doesn't fit; the message lists what is there."""


class ModelFolderError(RefusedError):
    """The model folder lacks something; the message names the file and the source."""


class DataError(RefusedError):
    """The indexed dataset is unreadable or doesn't fit the run."""


class PushError(TrainerError):
    """The final model couldn't be uploaded."""


class PushRefusedError(RefusedError):
    """Where it is to be uploaded refuses it: a key or a name is wrong."""


class FetchError(TrainerError):
    """The model couldn't be fetched from the hub."""


class ServersError(TrainerError):
    """Gym servers or vLLM didn't come up before the deadline."""


class RolloutsStalledError(TrainerError):
    """No usable rollout group for `rollout.stallTimeoutSeconds`."""


class WorkerDiedError(TrainerError):
    """The rollout worker's thread ended by an error that it should not have."""


class StorageError(TrainerError):
    """The checkpoint volume is full, read-only or broken; a new attempt resumes from the last whole checkpoint."""


class InterruptedBySignal(TrainerError):  # noqa: N818 - not a fault: the pod is asked to go
    """SIGTERM: the pod is going away."""


class FailureKind(StrEnum):
    """Whose doing it is that a rollout failed: the fields of spec.rollout.onFailure. rollouts/failures.py decides."""

    INFRASTRUCTURE = "infrastructure"
    TIMEOUT = "timeout"
    ENVIRONMENT = "environment"


class RolloutError(Exception):
    """One try of a rollout failed."""

    def __init__(self, message: str, kind: FailureKind = FailureKind.INFRASTRUCTURE) -> None:
        super().__init__(message)
        self.kind = kind


class AgentError(RolloutError):
    """The agent refused, broke, or didn't answer before the deadline."""


class RowRefusedError(AgentError):
    """The row doesn't fit the server's schema: neither another try nor another rollout of its group can help."""


class AnswerError(RolloutError):
    """The answer of an agent has no usable tokens or reward."""


class DropReason(StrEnum):
    """Why a group was dropped; label `reason` of the metric."""

    FAILED = "failed"  # too few of its rollouts are left: another row is drawn
    STALE = "stale"  # sampled by weights that the gateway should not have let through: drawn again
    FOREIGN_WEIGHTS = "foreign_weights"  # sampled from other weights than this attempt's: drawn again
    NO_LEDGER_ENTRY = "no_ledger_entry"  # no gateway pod knows which weights sampled it: drawn again
    OTHER_TEMPERATURE = "other_temperature"  # sampled at that of evaluations: drawn again
    EQUAL_REWARDS = "equal_rewards"  # no advantage, and rollout.dynamicSampling: another row is drawn
    TOO_LONG = "too_long"  # a sample has more tokens than trainer.config.token_budget: another row is drawn


class GroupDroppedError(Exception):
    """A group can't be trained on; never rewarded with 0 instead."""

    def __init__(self, reason: DropReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        # That had ended, where the run keeps records of them: rollouts.summary.RolloutSummary, of a layer above this.
        self.rollouts: Sequence[Any] = ()
