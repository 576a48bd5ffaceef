"""Whole runs of the real rollout worker with scripted rollouts, under random settings, with attempts that crash."""

import queue
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gymtrain_api.spec import OnFailure
from gymtrain_trainer.data.order import Place
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import DropReason, GroupDroppedError
from gymtrain_trainer.framework import SampleGroup
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.rollouts.buffer import UsedGroup
from gymtrain_trainer.rollouts.group import GroupEvents, GroupRules, GroupRunner
from gymtrain_trainer.rollouts.guard import Versions, WeightGuard
from gymtrain_trainer.rollouts.origins import Rollout
from gymtrain_trainer.rollouts.pace import Bounds
from gymtrain_trainer.rollouts.parts import WorkerParts, WorkerSettings
from gymtrain_trainer.rollouts.positions import REDRAWS
from gymtrain_trainer.rollouts.report import RolloutReport
from gymtrain_trainer.rollouts.samples import to_samples
from gymtrain_trainer.rollouts.source import Sampling
from gymtrain_trainer.rollouts.worker import RolloutWorker
from gymtrain_trainer.trl.prefixes import PrefixTree
from gymtrain_trainer.weights import SyncNumbers
from tests.unit.trainer.trainer_groups import Servers
from tests.unit.trainer.trainer_script import BEFORE, Draw, Rows, Rules, Script

AGAIN = (
    DropReason.STALE,
    DropReason.NO_LEDGER_ENTRY,
    DropReason.OTHER_TEMPERATURE,
)  # such groups are drawn again, up to a limit
_PATIENCE = 20.0  # seconds until the trainer counts as waiting for ever


@dataclass(frozen=True)
class Case:
    """A run's settings.

    Attributes:
        per_step: groups; None where a step ends at `tokens`.
        sync_every: steps of one weight version.
        masks: truncated rollouts are masked.
        steps: of the run.
        crashes: after how many steps each attempt but the last ends, and how many of them its checkpoint has.
    """

    seed: int
    rules: Rules
    per_step: int | None
    tokens: int
    sync_every: int
    staleness: int
    concurrent: int
    masks: bool
    steps: int
    crashes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, seed: int) -> "Case":
        """At random."""
        chance = random.Random(seed)
        staleness = seed % 5
        by_tokens = staleness > 0 and chance.random() < 0.4  # on-policy they are refused
        tokens = chance.choice([60, 100, 200])
        steps = chance.randint(8, 14)
        ends = sorted(chance.sample(range(1, steps), chance.choice([0, 0, 1, 2])))
        return cls(
            seed=seed,
            rules=Rules(
                group_size=chance.randint(2, 5),
                policy=OnFailure(
                    infrastructure=chance.choice(["Retry", "DropRollout"]),
                    timeout=chance.choice(["Retry", "DropRollout", "Zero"]),
                    environment=chance.choice(["Retry", "DropRollout", "Zero"]),
                ),
                dynamic=chance.random() < 0.5,
                longest=tokens if by_tokens else chance.choice([None, 38]),
                gateway=chance.random() < 0.5,
            ),
            per_step=None if by_tokens else chance.randint(1, 4),
            tokens=tokens,
            sync_every=chance.choice([1, 1, 2]),
            staleness=staleness,
            concurrent=chance.choice([4, 16, 64]),
            masks=chance.random() < 0.5,
            steps=steps,
            crashes=tuple((end, chance.randint(0, end)) for end in ends),
        )


class Heard(RolloutReport):
    """A report that notes for each draw why it was dropped."""

    def __init__(self, board: ProgressBoard, draws: dict[int, list[Draw]], *, masks_truncated: bool) -> None:
        super().__init__(board, Sampling(1.0, 8), masks_truncated=masks_truncated)
        self._draws = draws

    def group_dropped(self, task: Task, error: GroupDroppedError) -> None:
        """Of the row's last draw."""
        draw = self._draws[int(task.agent.removeprefix("agent-"))][-1]
        assert draw.dropped is None
        draw.dropped = error.reason
        super().group_dropped(task, error)


@dataclass
class Attempt:
    """What one attempt did.

    Attributes:
        start: where it began.
        used: by step.
        kept: steps that a later attempt goes on from, or all.
        place: after these.
        waiting: groups that it left in the queue.
        discarded: groups that the guard discarded.
    """

    start: Place
    used: list[list[UsedGroup]]
    kept: int
    place: Place
    waiting: list[SampleGroup]
    script: Script
    board: ProgressBoard
    report: Heard
    discarded: int

    @property
    def trained(self) -> list[SampleGroup]:
        """All that it trained on, also what no checkpoint has."""
        return [one.group for step in self.used for one in step]

    @property
    def usable(self) -> list[tuple[SampleGroup, Draw]]:
        """All groups that could be used, each with the draw that it is of."""
        return [(group, self.script.draws[group.id][-1]) for group in (*self.trained, *self.waiting)]

    @property
    def dropped(self) -> list[DropReason]:
        """Of all draws."""
        return [draw.dropped for draws in self.script.draws.values() for draw in draws if draw.dropped]

    def reason(self, position: int) -> DropReason | None:
        """Why a row was given up for good; None if it wasn't."""
        dropped = [draw.dropped for draw in self.script.draws.get(position, ())]
        hopeless = sum(reason in AGAIN for reason in dropped) > REDRAWS
        last = dropped[-1] if dropped else None
        at_once = last in (DropReason.FAILED, DropReason.TOO_LONG, DropReason.EQUAL_REWARDS)
        return last if at_once or (hopeless and last in AGAIN) else None

    def reported(self, name: str) -> float:
        """The sum of a metric of the queue."""
        return float(sum(metrics.get(name, 0.0) for metrics in self.report.metrics.queue))


@dataclass
class Run:
    """A case, and its attempts."""

    case: Case
    attempts: list[Attempt]


def attempted(case: Case, number: int, start: Place, steps: int, ends: int, kept: int) -> Attempt:
    """One attempt: it begins at `start`, has `steps` to do, ends after `ends`, and a checkpoint has `kept` of them."""
    chance = random.Random(f"{case.seed}/{number}")
    numbering, board, discarded = SyncNumbers("run", number, BEFORE), ProgressBoard(), Counter[str]()
    script = Script(f"{case.seed}/{number}", case.rules, numbering)
    report = Heard(board, script.draws, masks_truncated=case.masks)

    @asynccontextmanager
    async def groups(events: GroupEvents) -> AsyncIterator[GroupRunner]:
        def samples(rollouts: Sequence[Rollout], task: Task) -> SampleGroup:
            return to_samples(
                rollouts, group_id=task.position, agent=task.agent, fork_threshold=0, mask_truncated=case.masks
            )

        script.on_failure = lambda error: events.rollout_failed(str(error))
        ledger: Any = script if case.rules.gateway else None
        async with script:
            yield GroupRunner(
                GroupRules(size, case.staleness, case.rules.longest, case.rules.dynamic, case.rules.policy, 1.0),
                script,
                WeightGuard(Servers(), verdict),
                ledger,
                numbering,
                samples,
                events,
            )

    def verdict(before: Versions, after: Versions) -> str | None:
        if case.rules.gateway or chance.random() > 0.05:
            return None
        discarded["groups"] += 1
        return "foreign"

    size, per_step = case.rules.group_size, case.per_step
    total = steps * per_step if per_step is not None else None
    worker = RolloutWorker(
        WorkerSettings(
            Bounds(size, per_step, case.sync_every, case.staleness, case.concurrent, total),
            stall_timeout_seconds=_PATIENCE,
            start=start,
        ),
        Rows(),  # type: ignore[arg-type]  # stands in for Tasks
        WorkerParts(groups=groups, report=report),
    )

    def sync(version: int) -> None:
        numbering.sent(f"run:{number}:{BEFORE + version}")
        worker.update_model_version(version)

    used: list[list[UsedGroup]] = []
    place, version = start, 1
    sync(version)
    worker.start()
    try:
        for step in range(1, ends + 1):
            take_step(worker, case)
            time.sleep(random.Random(f"{case.seed}/{step}").choice([0.0, 0.001, 0.005]))
            used.append(worker.use())
            if step == kept:
                place = worker.place()
            if step % case.sync_every == 0:
                version += 1
                sync(version)
    finally:
        worker.stop()
    waiting = [worker.buffer.get(0) for _ in range(worker.buffer.qsize())]
    if ends == steps:
        place = worker.place()
    return Attempt(start, used, kept, place, waiting, script, board, report, discarded["groups"])


def take_step(worker: RolloutWorker, case: Case) -> None:
    """Takes the groups of a step, as the trainer does."""
    groups = tokens = 0
    while (tokens < case.tokens) if case.per_step is None else (groups < case.per_step):
        try:
            group = worker.buffer.get(timeout=0.5)
        except queue.Empty:
            worker.check_health()
            continue
        groups += 1
        tokens += PrefixTree.of(group.samples).unique_tokens


def ran(case: Case) -> Run:
    """All attempts, to the last step."""
    attempts: list[Attempt] = []
    place, done = Place(), 0
    for number, (end, kept) in enumerate((*case.crashes, (case.steps, case.steps)), 1):
        attempts.append(attempted(case, number, place, case.steps - done, end - done, max(0, kept - done)))
        place = attempts[-1].place
        done += attempts[-1].kept
    return Run(case, attempts)
