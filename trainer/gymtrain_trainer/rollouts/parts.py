"""What the rollout worker is made of."""

from collections.abc import Callable
from dataclasses import dataclass

from gymtrain_trainer.data.order import Place
from gymtrain_trainer.errors import RolloutError
from gymtrain_trainer.rollouts.announce import Announcer
from gymtrain_trainer.rollouts.group import GroupRules, SampleMaker
from gymtrain_trainer.rollouts.guard import WeightGuard
from gymtrain_trainer.rollouts.ledger import Ledger
from gymtrain_trainer.rollouts.pace import Bounds
from gymtrain_trainer.rollouts.report import RolloutReport
from gymtrain_trainer.rollouts.source import RolloutSource


@dataclass(frozen=True)
class WorkerSettings:
    """Numbers of the worker."""

    rules: GroupRules
    bounds: Bounds
    stall_timeout_seconds: float
    start: Place


@dataclass(frozen=True)
class WorkerParts:
    """What the worker is made of; the factories are called inside its event loop."""

    source: Callable[[Callable[[RolloutError], None]], RolloutSource]  # told who hears of failed tries
    guard: Callable[[], WeightGuard]
    ledger: Callable[[], Ledger] | None  # None where the run has no gateway
    make_samples: SampleMaker
    report: RolloutReport
    announcer: Callable[[], Announcer] | None = None  # None where the run has no sandboxes
