"""What the rollout worker is made of."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from gymtrain_trainer.data.order import Place
from gymtrain_trainer.rollouts.announce import Announcer
from gymtrain_trainer.rollouts.group import GroupEvents, Groups
from gymtrain_trainer.rollouts.pace import Bounds
from gymtrain_trainer.rollouts.report import RolloutReport


@dataclass(frozen=True)
class WorkerSettings:
    """Numbers of the worker."""

    bounds: Bounds
    stall_timeout_seconds: float
    start: Place


@dataclass(frozen=True)
class WorkerParts:
    """What the worker is made of; `groups` and `announcer` are called inside its event loop."""

    groups: Callable[[GroupEvents], AbstractAsyncContextManager[Groups]]
    report: RolloutReport
    held: Callable[[], int] | None = None  # the model version that vLLM holds; None: the trainer's, at once
    prepare: Callable[[], None] | None = None  # starts what `groups` needs ahead of it
    announcer: Callable[[], Announcer] | None = None  # None where the run has no sandboxes
