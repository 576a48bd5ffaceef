"""Rollouts by a script: what becomes of each is known before it runs, and so is what must become of its group."""

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

from gymtrain_api.ledger import LedgerEntry, token_digest
from gymtrain_api.spec import OnFailure
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import (
    AgentError,
    DropReason,
    FailureKind,
    GroupDroppedError,
    RolloutError,
    RowRefusedError,
)
from gymtrain_trainer.progress import Loss
from gymtrain_trainer.rollouts.answer import Answer, Turn, UnscoredError
from gymtrain_trainer.rollouts.ledger import Entries
from gymtrain_trainer.weights import SyncNumbers

BEFORE = 100  # the last number of the attempt's earlier process
LONG = 40  # tokens of an answer in some rows; no other sample has more than 30
_CALLS = (
    DropReason.STALE,
    DropReason.NO_LEDGER_ENTRY,
    DropReason.FOREIGN_WEIGHTS,
    DropReason.OTHER_TEMPERATURE,
)


def agent_of(position: int) -> str:
    """Each row has an agent of its own, by which reports can be told apart."""
    return f"agent-{position}"


@dataclass(frozen=True)
class Rules:
    """What decides about groups."""

    group_size: int
    policy: OnFailure
    dynamic: bool
    longest: int | None  # tokens of a sample
    gateway: bool

    def zeroes(self, kind: FailureKind) -> bool:
        """A failure of that kind counts as reward 0."""
        return bool(getattr(self.policy, kind.value) == "Zero")


@dataclass
class Scripted:
    """One rollout.

    Attributes:
        turns: its calls; each token that is sampled has an id that no other token of the attempt has.
        forks: by turn: its history isn't what was sampled.
        failure: how it fails, None where it doesn't.
        known: its tokens are known though it fails.
        cut: vLLM cuts its last call off.
        seconds: of each call.
        versions: by turn: model versions that sampled it, once it has run.
    """

    turns: list[Turn]
    forks: list[bool]
    reward: float
    truncated: bool
    failure: FailureKind | None
    known: bool
    cut: bool
    tries: int
    seconds: float
    versions: list[range] = field(default_factory=list)

    @property
    def samples(self) -> list[list[int]]:
        """Numbers of the turns that make each sample."""
        parts: list[list[int]] = []
        for number, fork in enumerate(self.forks):
            if fork or not parts:
                parts.append([])
            parts[-1].append(number)
        return parts

    @property
    def longest(self) -> int:
        """Tokens of its longest sample."""
        last = [self.turns[part[-1]] for part in self.samples]
        return max(len(turn.prompt_ids) + len(turn.output_ids) for turn in last)


@dataclass
class Draw:
    """One draw of a row: the rollouts of a group.

    Attributes:
        trouble: what the ledger says of its calls.
        refused: a server refuses the row: the last rollout's failure.
        begun: rollouts.
        dropped: as was reported.
    """

    rollouts: list[Scripted]
    trouble: DropReason | None
    refused: bool
    begun: int = 0
    dropped: DropReason | None = None

    def with_tokens(self, rules: Rules) -> list[Scripted]:
        """Rollouts whose tokens are known, and count."""
        return [one for one in self.rollouts if one.failure is None or (one.known and rules.zeroes(one.failure))]

    def left(self, rules: Rules) -> list[Scripted]:
        """Of these, those that vLLM didn't cut off: the ones to train on."""
        return [one for one in self.with_tokens(rules) if not one.cut]

    def rewards(self, rules: Rules) -> tuple[float, ...]:
        """Of the group: those that were lost without tokens come last, where they count."""
        zeros = [one for one in self.rollouts if one.failure and not one.known and rules.zeroes(one.failure)]
        return (*(0.0 if one.failure else one.reward for one in self.left(rules)), *[0.0] * len(zeros))

    def looked_at(self, rules: Rules) -> bool:
        """Enough has tokens, all of known weights: what vLLM cut off is lost now, if anything is."""
        return not self.refused and len(self.with_tokens(rules)) >= 2 and self.trouble is None

    def end(self, rules: Rules) -> DropReason | None:
        """Why the group can't be used; None if it can."""
        left = self.left(rules)
        if self.refused or len(self.with_tokens(rules)) < 2:
            return DropReason.FAILED
        if self.trouble is not None:
            return self.trouble
        if len(left) < 2 or all(one.failure for one in left):
            return DropReason.FAILED
        if rules.longest is not None and max(one.longest for one in left) > rules.longest:
            return DropReason.TOO_LONG
        if rules.dynamic and len(set(self.rewards(rules))) == 1:
            return DropReason.EQUAL_REWARDS
        return None


class Rows:
    """Stands in for `Tasks`."""

    def at(self, position: int) -> Task:
        """The task at a position."""
        return Task(position, agent_of(position), "http://unused", {})


class Script:
    """The source of an attempt's rollouts, and the ledger of their calls."""

    def __init__(self, seed: str, rules: Rules, numbering: SyncNumbers) -> None:
        self.draws: defaultdict[int, list[Draw]] = defaultdict(list)  # by position
        self.lost: Counter[Loss] = Counter()  # rollouts that failed for good
        self.failed_tries = 0
        self.on_failure: Any = None  # told of each
        self._seed = seed
        self._rules = rules
        self._numbering = numbering
        self._entries: dict[str, LedgerEntry | None] = {}
        self._tokens = itertools.count(1000)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def run(self, task: Task) -> Answer:
        """The next rollout of the row."""
        draws = self.draws[task.position]
        if not draws or draws[-1].begun == self._rules.group_size:
            draws.append(self._drawn(task.position, len(draws)))
        draw, number = draws[-1], draws[-1].begun
        draw.begun += 1
        rollout = draw.rollouts[number]
        for turn, fork in zip(rollout.turns, rollout.forks, strict=True):
            first = self._numbering.model_versions
            await asyncio.sleep(rollout.seconds)
            rollout.versions.append(range(first, self._numbering.model_versions + 1))
            self._note(draw, rollout, turn, fork)
        for _ in range(rollout.tries - 1):
            self._try_failed(RolloutError("once", FailureKind.INFRASTRUCTURE))
        if draw.refused and number == self._rules.group_size - 1:
            raise self._try_failed(RowRefusedError("422"))
        answer = Answer(rollout.turns, rollout.reward, "", rollout.truncated)
        if rollout.failure is None:
            return answer
        zeroed = self._rules.zeroes(rollout.failure)
        self.lost[Loss(task.agent, rollout.failure.value, zeroed=zeroed)] += 1
        if rollout.known:
            unscored = Answer(rollout.turns, 0.0, "", rollout.truncated, scored=False)
            raise self._try_failed(UnscoredError("why", rollout.failure, unscored))
        raise self._try_failed(AgentError("why", rollout.failure))

    async def entries(self, digests: Sequence[str], since: float | None = None) -> Entries:
        """As the gateway's pods answer."""
        found = {digest: entry for digest in digests if (entry := self._entries[digest]) is not None}
        if len(found) < len(digests):
            raise GroupDroppedError(DropReason.NO_LEDGER_ENTRY, "unknown")
        return {digest: [entry] for digest, entry in found.items()}

    def _try_failed(self, error: RolloutError) -> RolloutError:
        self.failed_tries += 1
        self.on_failure(error)
        return error

    def _note(self, draw: Draw, rollout: Scripted, turn: Turn, fork: bool) -> None:
        labels = [self._numbering.label(version) for version in rollout.versions[-1]]
        if draw.trouble is DropReason.FOREIGN_WEIGHTS:
            labels = ["another:1:1"]
        elif draw.trouble is DropReason.STALE:
            labels = [f"{self._numbering.run}:{self._numbering.attempt}:{BEFORE // 2}"]
        unknown = draw.trouble is DropReason.NO_LEDGER_ENTRY
        first, last = turn is rollout.turns[0], turn is rollout.turns[-1]
        self._entries[token_digest(turn.prompt_ids, turn.output_ids)] = (
            None
            if unknown
            else LedgerEntry(
                versions=labels,
                history="first" if first else "forked" if fork else "exact",
                finish_reason="abort" if last and rollout.cut else "stop",
                temperatures=(0.0 if draw.trouble is DropReason.OTHER_TEMPERATURE else 1.0,),
            )
        )

    def _drawn(self, position: int, number: int) -> Draw:
        row, draw = Random(f"{self._seed}/{position}"), Random(f"{self._seed}/{position}/{number}")
        fails = row.choice([0.0, 0.1, 0.1, 0.2, 0.7])
        slow, long, equal = row.random() < 0.08, row.random() < 0.1, row.random() < 0.3
        hopeless, refused = row.random() < 0.05, row.random() < 0.03
        trouble = None
        if self._rules.gateway and hopeless:
            trouble = draw.choice(_CALLS[:2])
        elif self._rules.gateway and draw.random() < 0.15:
            trouble = draw.choice(_CALLS)
        rollouts = [self._scripted(draw, fails, LONG * long) for _ in range(self._rules.group_size)]
        for one in rollouts:
            one.reward = 1.0 if equal else one.reward
            one.seconds = 0.02 if slow else one.seconds
        return Draw(rollouts, trouble, refused)

    def _scripted(self, chance: Random, fails: float, longer: int) -> Scripted:
        turns: list[Turn] = []
        forks = [False] + [chance.random() < 0.3 for _ in range(chance.randrange(4))]
        history = [1, 2, 3]
        for fork in forks:
            prompt = [next(self._tokens), *history[1:]] if fork else history
            output = [next(self._tokens) for _ in range(chance.randint(1, 4) + longer)]
            turns.append(Turn.of(prompt, output, [-0.5] * len(output)))
            history = [*prompt, *output, 4]
        return Scripted(
            turns,
            forks,
            reward=chance.choice([0.0, 0.25, 1.0]),
            truncated=chance.random() < 0.15,
            failure=chance.choice(list(FailureKind)) if chance.random() < fails else None,
            known=chance.random() < 0.5,
            cut=self._rules.gateway and chance.random() < 0.05,
            tries=1 + (chance.random() < 0.1),
            seconds=chance.choice([0.0, 0.0, 0.001, 0.003]),
        )
