"""Rollouts that have ended, until a step is there that they are recorded with. docs/records.md tells users of the
columns.

```
worker's thread    usable ──► waits for the step that trains on the group ─┐
                   dropped, lost ──► wait for the step that ends next ─────┤
trainer's thread   evaluated ──► the step that was evaluated ──────────────┴──► StepRollouts
```
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gymtrain_api.spec import Records
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import GroupDroppedError
from gymtrain_trainer.framework import TrainedSample
from gymtrain_trainer.rollouts.buffer import UsedGroup
from gymtrain_trainer.rollouts.evaluation import EvaluationEnd
from gymtrain_trainer.rollouts.group import Group, Lost
from gymtrain_trainer.rollouts.hops import Hops
from gymtrain_trainer.rollouts.transcript import unpacked

FOLDER = "rollouts"  # below the run's

COLUMNS: Mapping[str, str] = {
    "step": "int64",
    "outcome": "string",
    "reason": "string",
    "error": "string",
    "agent": "string",
    "group": "int64",  # position of its row in the draw order, or among the rows of data.validation
    "rollout": "int32",  # in the group
    "reward": "double",
    "advantage": "double",
    "ratio": "double",
    "versions": "list<string>",
    "staleness": "int32",
    "turns": "int32",
    "tokens": "int32",
    "forks": "int32",
    "truncated": "bool",
    "constrained": "bool",
    "seconds": "double",
    "tries": "int32",
    "time": "double",
    "slot_s": "double",
    "earlier_s": "double",
    "start_s": "double",
    "model_s": "double",
    "queue_s": "double",
    "vllm_s": "double",
    "tools_s": "double",
    "verify_s": "double",
    "calls": "string",  # JSON
    "conversation": "string",
}

_OTHERS = 4096  # rollouts that no step trains on, between two steps

type Label = Callable[[int], str]


@dataclass(frozen=True)
class EndedRollout:
    """A row, but for its step and what that made of it. `outcome`: trained, dropped, lost, zeroed or evaluated."""

    outcome: str
    agent: str
    group: int
    time: float
    rollout: int | None = None
    reason: str = ""  # for which it was dropped, or kind of its failure
    error: str = ""
    reward: float | None = None
    versions: tuple[int, ...] = ()
    turns: int = 0
    tokens: int | None = None
    forks: int = 0
    truncated: bool = False
    constrained: bool = False
    seconds: float | None = None
    tries: int | None = None
    hops: Hops | None = None
    conversation: bytes = b""
    advantage: float | None = None
    ratio: float | None = None
    staleness: int | None = None


@dataclass(frozen=True)
class StepRollouts:
    """What is written of one step, or of an evaluation of it; `labels`: of the model versions that `ended` names."""

    columns: ClassVar[Mapping[str, str]] = COLUMNS

    step: int
    ended: Sequence[EndedRollout]
    labels: Mapping[int, str]
    kind: str = "step"

    def rows(self) -> Iterator[dict[str, Any]]:
        """One by rollout, its columns in order."""
        for one in self.ended:
            own = {name: getattr(one, name) for name in COLUMNS if hasattr(one, name)}
            own["versions"] = [self.labels[version] for version in one.versions]
            own["conversation"] = unpacked(one.conversation)
            own |= {name: round(value, 3) for name, value in one.hops.numbers().items()} if one.hops else {}
            own["calls"] = one.hops.calls if one.hops else ""
            yield {name: own.get(name) for name in COLUMNS} | {"step": self.step}


class EndedRollouts:
    """Keeps them for their steps. `take` and `evaluated` belong to the trainer's thread, the rest to the worker's."""

    def __init__(self, settings: Records, label: Label) -> None:
        """`label`: of a model version."""
        self._settings = settings
        self._label = label
        self._lock = threading.Lock()
        self._groups: dict[int, tuple[EndedRollout, ...]] = {}  # by position
        self._others: deque[EndedRollout] = deque()
        self.left_out = 0  # rollouts that no step trains on, for want of room

    @property
    def on(self) -> bool:
        """Whether any are kept."""
        return self._settings.rollouts != "None"

    # --- rollouts.report.RolloutRecords ---

    def usable(self, task: Task, group: Group) -> None:
        """The task's group goes to the trainer."""
        if not self.on:
            return
        ended = tuple(self._of_group("trained", task, group.rollouts))
        with self._lock:
            self._groups[task.position] = ended

    def dropped(self, task: Task, error: GroupDroppedError) -> None:
        """The task's group is dropped; one without any answer is a row by itself."""
        if not self.on:
            return
        ended = list(self._of_group("dropped", task, error.rollouts))
        ended = ended or [EndedRollout("dropped", task.agent, task.position, time.time())]
        self._add([replace(one, reason=str(error.reason), error=str(error)) for one in ended])

    def lost(self, agent: str, lost: Lost) -> None:
        """A rollout of the agent failed for good."""
        if self.on and lost.position is not None:
            self._add(
                [
                    EndedRollout(
                        "zeroed" if lost.zeroed else "lost",
                        agent,
                        lost.position,
                        time.time(),
                        reason=str(lost.kind),
                        error=lost.error,
                        reward=0.0 if lost.zeroed else None,
                        conversation=lost.conversation,
                    )
                ]
            )

    # --- the trainer's thread ---

    def take(
        self, step: int, used: Sequence[UsedGroup], chosen: Sequence[UsedGroup], trained: Sequence[TrainedSample]
    ) -> StepRollouts | None:
        """Of a step that has ended: those of the chosen among its groups, and those that ended otherwise before it."""
        if not self.on:
            return None
        with self._lock:
            groups = {one.group.id: self._groups.pop(one.group.id, ()) for one in used}
            others = list(self._others)
            self._others.clear()
        made = {(one.group_id, one.index): one for one in trained}
        ended = [rollout for one in chosen for rollout in _trained(one, groups[one.group.id], made)]
        return self._table(step, [*ended, *others])

    def evaluated(self, step: int, version: int, end: EvaluationEnd) -> StepRollouts | None:
        """Of an evaluation of that step, by that model version."""
        if not self.on:
            return None
        tasks = end.tasks
        if self._settings.rollouts == "Sampled":
            every = max(1, len(tasks) // self._settings.groups_per_step)
            tasks = tasks[::every][: self._settings.groups_per_step]
        ended = [
            EndedRollout(
                "evaluated",
                task.agent,
                task.position,
                time.time(),
                number,
                one.failure,
                one.error,
                one.reward,
                versions=(version,),
                turns=one.turns,
                tokens=one.tokens,
                truncated=one.truncated,
                seconds=one.seconds or None,
                hops=one.hops,
                conversation=one.conversation,
            )
            for task in tasks
            for number, one in enumerate(task.rollouts)
        ]
        return self._table(step, ended, "evaluation")

    def _table(self, step: int, ended: Sequence[EndedRollout], kind: str = "step") -> StepRollouts | None:
        if not ended:
            return None
        numbers = {number for one in ended for number in one.versions}
        return StepRollouts(step, ended, {number: self._label(number) for number in numbers}, kind)

    def _of_group(self, outcome: str, task: Task, rollouts: Sequence[Any]) -> Iterator[EndedRollout]:
        now = time.time()
        for number, one in enumerate(rollouts):
            yield EndedRollout(
                outcome,
                task.agent,
                task.position,
                now,
                number,
                reward=one.reward if one.scored or outcome == "trained" else None,
                versions=one.versions,
                turns=one.turns,
                tokens=one.tokens,
                forks=one.forks,
                truncated=one.truncated,
                constrained=one.constrained > 0,
                seconds=round(one.seconds, 3),
                tries=one.tries,
                hops=one.hops,
                conversation=one.conversation,
            )

    def _add(self, ended: Sequence[EndedRollout]) -> None:
        most = _OTHERS if self._settings.rollouts == "All" else self._settings.groups_per_step
        with self._lock:
            for one in ended:
                if len(self._others) < most:
                    self._others.append(one)
                else:
                    self.left_out += 1


def _trained(
    used: UsedGroup, ended: Sequence[EndedRollout], made: Mapping[tuple[int, int], TrainedSample]
) -> Iterator[EndedRollout]:
    """The rollouts of a group, with what the step made of the first sample of each."""
    first: dict[int, int] = {}
    oldest: dict[int, int] = {}
    for index, sample in enumerate(used.group.samples):
        first.setdefault(sample.rollout, index)
        oldest[sample.rollout] = min(sample.version, oldest.get(sample.rollout, sample.version))
    for number, one in enumerate(ended):
        found = made.get((used.group.id, first.get(number, -1)))
        yield replace(
            one,
            advantage=found.advantage if found else None,
            ratio=found.ratio if found else None,
            staleness=used.version - oldest[number] if number in oldest else None,
        )
