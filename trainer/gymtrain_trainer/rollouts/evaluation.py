"""All rollouts of one evaluation: every task as often as wanted, in a fixed order, some at once, until a deadline."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from gymtrain_trainer.data.rows import ValidationTasks
from gymtrain_trainer.rollouts.evaluate import DEADLINE, Evaluated
from gymtrain_trainer.rollouts.group import Groups


@dataclass(frozen=True)
class EvaluationSettings:
    """Of a run's evaluations: `samples` rollouts of each task, `concurrent` at once, `seconds` for all of them."""

    samples: int
    concurrent: int
    seconds: float
    while_training: bool = True


@dataclass(frozen=True)
class TaskEnds:
    """How the rollouts of one task ended."""

    agent: str
    rollouts: tuple[Evaluated, ...]
    position: int = 0  # of its row among those of data.validation


@dataclass(frozen=True)
class EvaluationEnd:
    """How an evaluation ended; `seconds` it took."""

    tasks: tuple[TaskEnds, ...]
    seconds: float


class EvaluationRun:
    """One evaluation of one model version."""

    def __init__(self, tasks: ValidationTasks, settings: EvaluationSettings, version: int) -> None:
        """Begins nothing yet."""
        self.version = version
        self.settings = settings
        self.end: Future[EvaluationEnd] = Future()
        self._tasks = tasks
        self._ended: dict[tuple[int, int], Evaluated] = {}

    async def run(self, groups: Groups) -> None:
        """Makes the rollouts, and says in `end` how they ended, or what error the evaluation ended by."""
        began = time.monotonic()
        try:
            await self._until_deadline(groups)
            tasks = tuple(self._of_task(number) for number in range(len(self._tasks)))
            self.end.set_result(EvaluationEnd(tasks, time.monotonic() - began))
        except asyncio.CancelledError:
            self.end.cancel()
            raise
        except Exception as error:
            self.end.set_exception(error.exceptions[0] if isinstance(error, ExceptionGroup) else error)

    async def _until_deadline(self, groups: Groups) -> None:
        waiting = itertools.product(range(len(self._tasks)), range(self.settings.samples))
        makers = min(self.settings.concurrent, len(self._tasks) * self.settings.samples)
        try:
            async with asyncio.timeout(self.settings.seconds), asyncio.TaskGroup() as running:
                for _ in range(makers):
                    running.create_task(self._make(waiting, groups))
        except TimeoutError:
            pass  # what has not ended is known by what is missing

    async def _make(self, waiting: Iterator[tuple[int, int]], groups: Groups) -> None:
        for number, sample in waiting:
            self._ended[number, sample] = await groups.evaluate(self._tasks.at(number), self.version)

    def _of_task(self, number: int) -> TaskEnds:
        late = Evaluated(failure=DEADLINE, error=f"it had not ended after {self.settings.seconds:g} s")
        rollouts = tuple(self._ended.get((number, sample), late) for sample in range(self.settings.samples))
        return TaskEnds(self._tasks.at(number).agent, rollouts, number)
