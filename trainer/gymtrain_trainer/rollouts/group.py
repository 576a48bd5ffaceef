"""One group, from its first request to its samples, with every reason for which it can't be used.

```
group_size rollouts ──► origin of each turn (ledger) ──► guard ──► samples
   │ one fails for good    │ unknown, foreign              │          │ longer than can be trained
   │                       │                               │ vLLM lost the weights
   └─────────────┬─────────┴───────────────────────────────┴──────────┘
                 ▼
         GroupDroppedError with its DropReason
```
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import DropReason, GroupDroppedError, RolloutError
from gymtrain_trainer.framework import SampleGroup
from gymtrain_trainer.rollouts.answer import Answer
from gymtrain_trainer.rollouts.guard import WeightGuard
from gymtrain_trainer.rollouts.ledger import Ledger
from gymtrain_trainer.rollouts.origins import Rollout, digests_of, rollouts_of
from gymtrain_trainer.rollouts.source import RolloutSource
from gymtrain_trainer.weights import SyncNumbers

type SampleMaker = Callable[[Sequence[Rollout], Task], SampleGroup]


@dataclass(frozen=True)
class Group:
    """A usable group."""

    task: Task
    rollouts: list[Rollout]
    samples: SampleGroup
    seconds: float


@dataclass(frozen=True)
class GroupRules:
    """What makes a group usable."""

    group_size: int
    max_staleness: int  # that the gateway lets through
    numbering: SyncNumbers
    max_sample_tokens: int | None = None


class GroupRunner:
    """Runs groups; lives in the worker's event loop."""

    def __init__(
        self,
        rules: GroupRules,
        source: RolloutSource,
        guard: WeightGuard,
        ledger: Ledger | None,
        make_samples: SampleMaker,
        version: Callable[[], int],
    ) -> None:
        """`ledger`: None where the run has no gateway; `version`: the trainer's model version now."""
        self._rules = rules
        self._source = source
        self._guard = guard
        self._ledger = ledger
        self._make_samples = make_samples
        self._version = version
        self.running = 0  # rollouts

    async def run(self, task: Task) -> Group:
        """One group.

        Raises:
            GroupDroppedError: it can't be used.
        """
        began, version = time.monotonic(), self._version()
        try:
            before = await self._guard.before()
            answers = await self._answers(task)
            rollouts = await self._origins(answers, version, began)
            if reason := await self._guard.reason_to_discard(before):
                raise GroupDroppedError(DropReason.FOREIGN_WEIGHTS, reason)
            samples = self._make_samples(rollouts, task)
            self._check_lengths(samples)
        except RolloutError as error:
            raise GroupDroppedError(DropReason.FAILED, str(error)) from error
        return Group(task, rollouts, samples, time.monotonic() - began)

    async def _answers(self, task: Task) -> list[Answer]:
        """All rollouts of a group. The first that fails for good ends the others, and its RolloutError is raised."""
        running = [asyncio.create_task(self._rollout(task)) for _ in range(self._rules.group_size)]
        try:
            return await asyncio.gather(*running)
        finally:
            for rollout in running:
                rollout.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _rollout(self, task: Task) -> Answer:
        self.running += 1
        try:
            return await self._source.run(task)
        finally:
            self.running -= 1

    async def _origins(self, answers: list[Answer], version: int, began: float) -> list[Rollout]:
        if self._ledger is None:
            # Any version from the group's start until now, and the one that may be on its way to the pods: the guard
            # sees to it that there were no others.
            versions = tuple(range(version, max(version, self._version()) + 2))
            return [Rollout(answer, versions) for answer in answers]
        entries = await self._ledger.entries(list(digests_of(answers)), began)
        return rollouts_of(answers, entries, self._rules.numbering, version - self._rules.max_staleness)

    def _check_lengths(self, group: SampleGroup) -> None:
        longest, limit = max(len(sample.token_ids) for sample in group.samples), self._rules.max_sample_tokens
        if limit is not None and longest > limit:
            raise GroupDroppedError(
                DropReason.TOO_LONG,
                f"a rollout has a sequence of {longest} tokens; trainer.config.token_budget is {limit}: raise it, or "
                "lower --max-model-len in spec.inference.args",
            )
