"""The ledger: which weights sampled which tokens.

An entry begins with its call and ends when the trainer has asked for it. Nobody says how many calls a rollout makes,
nor that one has failed, so an entry that nobody asks for ends when its rollout's deadline is over at the latest. Until
then only want of room can end it, the oldest first, and that is counted: the trainer's alarm tells of it.

Entries are small, some 170 bytes (benchmarks/ledger_memory.py): most calls have the same versions, history and ending,
so those are held once. A call's own request, which carries the ids of its whole conversation, takes a thousand times as
much while it is open.

What was asked for is kept a while longer: a question may be put twice, and an equal call of another group shares the
entry.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gymtrain_api.ledger import LedgerAnswer, LedgerEntry, LedgerQuestion, token_digest
from gymtrain_api.weight_version import WeightVersion
from gymtrain_gateway.lru import LRU

ASKED = 65_536  # entries that are kept after the trainer has asked for them
_VERSIONS_KEPT = 16  # of one entry
_KINDS = 4096  # different entries that are held once
_TICKS = 64  # parts of an entry's life that are told apart


@dataclass(frozen=True)
class LedgerLimits:
    """What the ledger keeps of calls that the trainer has not asked for."""

    calls: int
    seconds: float


@dataclass(frozen=True)
class _Noted:
    """Shared by all calls with the same entry of about the same time."""

    entry: LedgerEntry
    tick: int


class Ledger:
    """The ledger of one gateway pod."""

    def __init__(self, limits: LedgerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic seconds."""
        self._limits = limits
        self._clock = clock
        self._began = clock()
        self._open: OrderedDict[bytes, _Noted] = OrderedDict()  # not asked for yet, oldest first
        self._asked: LRU[bytes, LedgerEntry] = LRU(ASKED)
        self._kinds: LRU[tuple[object, ...], _Noted] = LRU(_KINDS)
        self.forgotten = 0  # calls that ended for want of room

    def __len__(self) -> int:
        return len(self._open) + len(self._asked)

    @property
    def unasked(self) -> int:
        """Calls that the trainer has not asked for."""
        return len(self._open)

    def note(self, prompt: Sequence[int], output: Sequence[int], entry: LedgerEntry) -> None:
        """Remembers one call. Calls with equal tokens share an entry: it names all versions that sampled them."""
        key = bytes.fromhex(token_digest(prompt, output))
        before = self._open.pop(key, None)
        old = before.entry if before is not None else self._asked.get(key)
        self._open[key] = self._shared(_merged(old, entry))
        self._end_overdue()
        while len(self._open) > self._limits.calls:
            self._open.popitem(last=False)
            self.forgotten += 1

    def answer(self, question: LedgerQuestion) -> LedgerAnswer:
        """The entries that are here."""
        found = {digest: entry for digest in question.digests if (entry := self._ask(digest)) is not None}
        return LedgerAnswer(entries=found, forgotten=self.forgotten, age_seconds=self._clock() - self._began)

    def _ask(self, digest: str) -> LedgerEntry | None:
        try:
            key = bytes.fromhex(digest)
        except ValueError:
            return None
        noted = self._open.pop(key, None)
        if noted is None:
            return self._asked.get(key)
        self._asked.put(key, noted.entry)
        return noted.entry

    def _shared(self, entry: LedgerEntry) -> _Noted:
        tick = int(self._clock() / self._limits.seconds * _TICKS)
        kind = (
            *entry.versions,
            entry.history,
            entry.finish_reason,
            entry.constrained,
            entry.replaced,
            entry.temperatures,
            tick,
        )
        noted = self._kinds.get(kind)
        if noted is None:
            noted = _Noted(entry, tick)
            self._kinds.put(kind, noted)
        return noted

    def _end_overdue(self) -> None:
        last = int((self._clock() - self._limits.seconds) / self._limits.seconds * _TICKS)
        while self._open and next(iter(self._open.values())).tick < last:
            self._open.popitem(last=False)


def _same_attempt(label: str, other: str) -> bool:
    one, two = WeightVersion.parse(label), WeightVersion.parse(other)
    return one is not None and two is not None and one.is_of(two.run, two.attempt)


def _merged(old: LedgerEntry | None, new: LedgerEntry) -> LedgerEntry:
    """Versions of another attempt than the new entry's are forgotten: no trainer asks for them any more."""
    if old is None:
        return new
    earlier = [label for label in old.versions if label not in new.versions and _same_attempt(label, new.versions[-1])]
    history = "forked" if "forked" in (old.history, new.history) else new.history
    versions = [*earlier, *new.versions][-_VERSIONS_KEPT:]
    constrained = old.constrained or new.constrained
    replaced = tuple(dict.fromkeys([*old.replaced, *new.replaced]))
    temperatures = tuple(dict.fromkeys([*old.temperatures, *new.temperatures]))
    update = {
        "versions": versions,
        "history": history,
        "constrained": constrained,
        "replaced": replaced,
        "temperatures": temperatures,
    }
    return new.model_copy(update=update)
