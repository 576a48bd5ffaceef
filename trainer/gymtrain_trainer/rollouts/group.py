"""One group, from its first request to its samples, with every reason for which it can't be used.

```
group_size rollouts ──► origin of each turn (ledger) ──► guard ──► samples
   │ too few are left      │ unknown, foreign              │          │ longer than can be trained, equal rewards
   │                       │                               │ vLLM lost the weights
   └─────────────┬─────────┴───────────────────────────────┴──────────┘
                 ▼
         GroupDroppedError with its DropReason
```

A rollout that fails for good is lost (`Lost`), and its group goes on without it, or with a reward of 0 in its place
(spec.rollout.onFailure). What is left makes a group if two rollouts have tokens, as one has nothing to be compared
with, and the environment itself gave one of these its reward: a group of nothing but made-up zeros would hide an
environment that is down, and has no advantage to train on.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from gymtrain_api.spec import OnFailure
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import (
    AnswerError,
    DropReason,
    FailureKind,
    GroupDroppedError,
    RolloutError,
    RowRefusedError,
)
from gymtrain_trainer.framework import SampleGroup
from gymtrain_trainer.rollouts.answer import Answer, UnscoredError
from gymtrain_trainer.rollouts.evaluate import Evaluated, Evaluator
from gymtrain_trainer.rollouts.failures import action_for
from gymtrain_trainer.rollouts.guard import Snapshot, WeightGuard
from gymtrain_trainer.rollouts.ledger import Ledger
from gymtrain_trainer.rollouts.origins import Rollout, digests_of, rollouts_of
from gymtrain_trainer.rollouts.source import RolloutSource
from gymtrain_trainer.rollouts.summary import RolloutSummary
from gymtrain_trainer.rollouts.traces import told, traced
from gymtrain_trainer.rollouts.transcript import packed
from gymtrain_trainer.weights import SyncNumbers

type SampleMaker = Callable[[Sequence[Rollout], Task], SampleGroup]

_ENOUGH = 2  # rollouts with tokens


@dataclass(frozen=True)
class Lost:
    """A rollout that failed for good.

    Attributes:
        kind: of its last failure.
        error: that failure.
        zeroed: it counts with reward 0; else it is dropped from its group.
        answer: its tokens, to train on with that 0, where it is zeroed and they are known.
        position: of its row.
        conversation: packed (transcript.py), as far as it is known, where the run keeps records of rollouts.
    """

    kind: FailureKind
    error: str
    zeroed: bool
    answer: Answer | None = None
    position: int | None = None
    conversation: bytes = b""


type End = Answer | Lost  # of a rollout


@dataclass(frozen=True)
class Group:
    """A usable group.

    Attributes:
        rollouts: with tokens; those of failed rollouts that count as 0 among them.
        seconds: that it took.
    """

    rollouts: tuple[RolloutSummary, ...]
    samples: SampleGroup
    seconds: float


class Groups(Protocol):
    """What runs the groups of a worker; lives in the worker's event loop."""

    @property
    def running(self) -> int:
        """Rollouts that run now."""
        ...

    def update_model_version(self, model_version: int) -> None:
        """The trainer's version from now on."""
        ...

    async def run(self, task: Task) -> Group:
        """One group, with the model version of now.

        Raises:
            GroupDroppedError: it can't be used.
        """
        ...

    async def evaluate(self, task: Task, version: int) -> Evaluated:
        """One rollout of an evaluation of that model version."""
        ...


class GroupEvents(Protocol):
    """Who hears of failures while groups run."""

    def rollout_failed(self, error: str) -> None:
        """One try of a rollout failed."""
        ...

    def rollout_lost(self, agent: str, lost: Lost) -> None:
        """A rollout of the agent failed for good; `lost` has no answer."""
        ...

    def rollouts_running(self, count: int) -> None:
        """So many rollouts run now."""
        ...


@dataclass(frozen=True)
class GroupRules:
    """What makes a group usable."""

    group_size: int
    max_staleness: int  # that the gateway lets through
    max_sample_tokens: int | None = None
    dynamic_sampling: bool = False  # equal rewards make a group of no use
    on_failure: OnFailure = field(default_factory=OnFailure)
    temperature: float | None = None  # of the run, where evaluations have another; None: there is only one
    records: bool = False  # rollouts are recorded: their conversations are kept


class GroupRunner:
    """The `Groups` of this process."""

    def __init__(
        self,
        rules: GroupRules,
        source: RolloutSource,
        guard: WeightGuard,
        ledger: Ledger | None,
        numbering: SyncNumbers,
        make_samples: SampleMaker,
        events: GroupEvents,
        evaluator: Evaluator | None = None,
    ) -> None:
        """Runs none yet.

        Args:
            rules: of the run.
            source: of rollouts.
            guard: of the weights.
            ledger: None where the run has no gateway.
            numbering: of the weights' versions.
            make_samples: from rollouts.
            events: told of failures.
            evaluator: where the run is evaluated.
        """
        self._evaluator = evaluator
        self._rules = rules
        self._source = source
        self._guard = guard
        self._ledger = ledger
        self._numbering = numbering
        self._make_samples = make_samples
        self._events = events
        self._version = 0
        self._enough = min(_ENOUGH, rules.group_size)
        self.running = 0  # rollouts

    def update_model_version(self, model_version: int) -> None:
        """The trainer's version from now on."""
        self._version = model_version

    async def run(self, task: Task) -> Group:
        """One group, with the model version of now.

        Raises:
            GroupDroppedError: it can't be used.
        """
        ended: list[Rollout] = []
        try:
            return await self._run(task, ended)
        except GroupDroppedError as error:
            if self._rules.records:
                error.rollouts = self._summaries(task, ended)
            raise

    async def _run(self, task: Task, ended: list[Rollout]) -> Group:
        """`ended` gets the rollouts with an answer, with as much as is known of them when the group is dropped."""
        began, version = time.monotonic(), self._version
        self._count(self._rules.group_size)
        try:
            before = await self._before()
            ends = await self._ends(task, ended)
            rollouts = ended[:] = await self._origins(_answers(ends), version, began)
            if reason := await self._guard.reason_to_discard(before):
                raise GroupDroppedError(DropReason.FOREIGN_WEIGHTS, reason)
            rollouts = self._usable(task, ends, rollouts)
            samples = self._make_samples(rollouts, task)
            self._check_lengths(samples)
        except RolloutError as error:
            raise GroupDroppedError(DropReason.FAILED, str(error)) from error
        zeros = sum(isinstance(end, Lost) and end.zeroed and end.answer is None for end in ends)
        samples = replace(samples, rewards=samples.rewards + (0.0,) * zeros)
        if self._rules.dynamic_sampling and not samples.reward_deviation:
            raise GroupDroppedError(
                DropReason.EQUAL_REWARDS,
                f"all {len(samples.rewards)} rewards of the group are {samples.rewards[0]:g} (rollout.dynamicSampling)",
            )
        return Group(self._summaries(task, rollouts), samples, time.monotonic() - began)

    async def evaluate(self, task: Task, version: int) -> Evaluated:
        """One rollout of an evaluation of that model version."""
        assert self._evaluator is not None, "the run is not evaluated"
        return await self._evaluator.run(task, version)

    def _summaries(self, task: Task, rollouts: Sequence[Rollout]) -> tuple[RolloutSummary, ...]:
        return tuple(RolloutSummary.of(one, self._conversation(task, one.answer)) for one in rollouts)

    def _conversation(self, task: Task, answer: Answer | None) -> bytes:
        if not self._rules.records:
            return b""
        return packed(task.row, answer.output if answer is not None else ())

    def _count(self, by: int) -> None:
        self.running += by
        self._events.rollouts_running(self.running)

    async def _before(self) -> Snapshot:
        try:
            return await self._guard.before()
        except BaseException:
            self._count(-self._rules.group_size)  # none of them began
            raise

    async def _ends(self, task: Task, answered: list[Rollout]) -> list[End]:
        """How all rollouts of a group ended; `answered` gets those with an answer, of weights that nobody asked for.

        Raises:
            GroupDroppedError: so many are lost that those which still run can't make a group. They are cancelled.
            RowRefusedError: of the first that a server refused. The others are cancelled.
        """
        running = [asyncio.create_task(self._rollout(task, self._version)) for _ in range(self._rules.group_size)]
        for rollout in running:
            rollout.add_done_callback(lambda _: self._count(-1))  # one that is cancelled may never have begun
        ended: list[End] = []
        pending = set(running)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                ended += [rollout.result() for rollout in done]
                answered[:] = [Rollout(answer, ()) for answer in _answers(ended)]
                if len(_answers(ended)) + len(pending) < self._enough:
                    raise self._too_few(ended)
            return [rollout.result() for rollout in running]
        finally:
            for rollout in running:
                rollout.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _rollout(self, task: Task, version: int) -> End:
        with traced(task, self._numbering, version, "training") as span:
            try:
                return told(span, await self._source.run(task))
            except RowRefusedError:
                raise
            except RolloutError as error:
                span.fail(str(error))
                return self._lost(task, error)

    def _lost(self, task: Task, error: RolloutError) -> Lost:
        zeroed = action_for(self._rules.on_failure, error.kind) == "Zero"
        answer = error.answer if zeroed and isinstance(error, UnscoredError) else None
        lost = Lost(error.kind, str(error), zeroed, answer)
        told = error.answer if isinstance(error, UnscoredError) else None
        self._events.rollout_lost(
            task.agent,
            replace(lost, answer=None, position=task.position, conversation=self._conversation(task, told)),
        )
        return lost

    def _usable(self, task: Task, ends: Sequence[End], rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts that vLLM didn't cut off; raises GroupDroppedError where they make no group."""
        cut = AnswerError("vLLM cut a model call of the rollout off (finish_reason abort)")
        # One without a reward of its own was lost, and counted, when it failed.
        lost = [self._lost(task, cut) for rollout in rollouts if rollout.aborted and rollout.answer.scored]
        left = [rollout for rollout in rollouts if not rollout.aborted]
        if len(left) < self._enough or not any(rollout.answer.scored for rollout in left):
            raise self._too_few([*ends, *lost])
        return left

    def _too_few(self, ends: Sequence[End]) -> GroupDroppedError:
        errors = [end.error for end in ends if isinstance(end, Lost)]
        return GroupDroppedError(
            DropReason.FAILED, f"{len(errors)} of {self._rules.group_size} rollouts failed; the last: {errors[-1]}"
        )

    async def _origins(self, answers: list[Answer], version: int, began: float) -> list[Rollout]:
        if self._ledger is None:
            # Any version from the group's start until now, and the one that may be on its way to the pods: the guard
            # sees to it that there were no others.
            versions = tuple(range(version, max(version, self._version) + 2))
            return [Rollout(answer, versions) for answer in answers]
        entries = await self._ledger.entries(list(digests_of(answers)), began)
        floor = version - self._rules.max_staleness
        return rollouts_of(answers, entries, self._numbering, floor, self._rules.temperature)

    def _check_lengths(self, group: SampleGroup) -> None:
        longest, limit = max(len(sample.token_ids) for sample in group.samples), self._rules.max_sample_tokens
        if limit is not None and longest > limit:
            raise GroupDroppedError(
                DropReason.TOO_LONG,
                f"a rollout has a sequence of {longest} tokens; trainer.config.token_budget is {limit}: raise it, or "
                "lower --max-model-len in spec.inference.args",
            )


def _answers(ends: Sequence[End]) -> list[Answer]:
    """Of the rollouts with tokens to train on."""
    answers = [end.answer if isinstance(end, Lost) else end for end in ends]
    return [answer for answer in answers if answer is not None]
