"""Makes what runs the groups, from settings that another process can be given."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from gymtrain_api.wiring import VerifyRoute
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import RolloutError
from gymtrain_trainer.framework import SampleGroup
from gymtrain_trainer.rollouts.client import AgentSource
from gymtrain_trainer.rollouts.evaluate import EvaluationRules, Evaluator
from gymtrain_trainer.rollouts.group import GroupEvents, GroupRules, GroupRunner
from gymtrain_trainer.rollouts.guard import WeightGuard, WeightState
from gymtrain_trainer.rollouts.ledger import Ledger
from gymtrain_trainer.rollouts.origins import Rollout
from gymtrain_trainer.rollouts.samples import to_samples
from gymtrain_trainer.rollouts.source import RolloutLimits, RolloutSource, Sampling
from gymtrain_trainer.rollouts.verify import VerifySource
from gymtrain_trainer.weights import SyncNumbers, foreign_weights


@dataclass(frozen=True)
class RunnerSettings:
    """Of a run. Can be pickled.

    Attributes:
        run, attempt: that the weights' versions name.
        first_number: the last number of a weight version that an earlier process of the attempt may have used.
        ledger_host: the headless Service of the gateway's pods; empty where the run has no gateway.
        verifiers: by agent server, in mode Verify; None in mode Agent.
        fork_threshold, mask_truncated: see samples.py.
        evaluation: None where the run isn't evaluated.
    """

    run: str
    attempt: int
    first_number: int
    rules: GroupRules
    limits: RolloutLimits
    sampling: Sampling
    ledger_host: str = ""
    verifiers: dict[str, VerifyRoute] | None = None
    fork_threshold: int = 0
    mask_truncated: bool = False
    evaluation: EvaluationRules | None = None

    def source(
        self,
        on_failure: Callable[[RolloutError], None] | None = None,
        limits: RolloutLimits | None = None,
        sampling: Sampling | None = None,
    ) -> RolloutSource:
        """Of rollouts, not open yet. `on_failure` hears of each failed try; `limits` and `sampling` of their own where
        they aren't for training."""
        limits, sampling = limits or self.limits, sampling or self.sampling
        if self.verifiers is not None:
            return VerifySource(limits, sampling, self.verifiers, on_failure)
        return AgentSource(limits, sampling, on_failure)

    def samples(self, rollouts: Sequence[Rollout], task: Task) -> SampleGroup:
        """Of the rollouts of a group."""
        return to_samples(
            rollouts,
            group_id=task.position,
            agent=task.agent,
            fork_threshold=self.fork_threshold,
            mask_truncated=self.mask_truncated,
        )


@asynccontextmanager
async def open_runner(
    settings: RunnerSettings, numbering: SyncNumbers, state: WeightState, events: GroupEvents
) -> AsyncIterator[GroupRunner]:
    """The runner, with its connections.

    Args:
        settings: of the run.
        numbering: of the weights' versions; the caller keeps it up to date.
        state: of the weights.
        events: told of failures.
    """
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(settings.source(lambda error: events.rollout_failed(str(error))))
        ledger = await stack.enter_async_context(Ledger(settings.ledger_host)) if settings.ledger_host else None
        verdict = partial(foreign_weights, run=settings.run, attempt=settings.attempt)
        guard = WeightGuard(state, verdict)
        evaluator: Evaluator | None = None
        if (rules := settings.evaluation) is not None:
            own = await stack.enter_async_context(settings.source(None, rules.limits, rules.sampling))
            evaluator = Evaluator(rules, own, ledger, numbering)
        yield GroupRunner(settings.rules, source, guard, ledger, numbering, settings.samples, events, evaluator)
