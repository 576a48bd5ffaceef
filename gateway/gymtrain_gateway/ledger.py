"""The ledger: which weights sampled which tokens.

An entry begins with its call and ends when the trainer has asked for it. Nobody says how many calls a rollout makes,
nor that one has failed, so an entry that nobody asks for ends when its rollout's deadline is over at the latest. Until
then only want of room can end it, the oldest first, and that is counted: the trainer's alarm tells of it.

Entries are small, some 200 bytes (benchmarks/ledger_memory.py): most calls have the same versions, history and ending,
so those are held once, and what is a call's own is packed. A call's own request, which carries the ids of its whole
conversation, takes a thousand times as much while it is open.

What was asked for is kept a while longer: a question may be put twice, and an equal call of another group shares the
entry.
"""

import math
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gymtrain_api.ledger import CallTimes, LedgerAnswer, LedgerEntry, LedgerQuestion, token_digest
from gymtrain_api.weight_version import WeightVersion

ASKED = 65_536  # entries that are kept after the trainer has asked for them
_VERSIONS_KEPT = 16  # of one entry
# Of a call: the number of its kind; when it was noted, in milliseconds since the ledger began, modulo 2**32 (49 days);
# its seconds in all, before a pod took it, and in vLLM, as half floats: three digits are enough for people.
_CALL = struct.Struct("<IIeee")
_MILLISECONDS = 1 << 32
_MOST_SECONDS = 65_504.0  # a half float's
_UNKNOWN = (math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class LedgerLimits:
    """What the ledger keeps of calls that the trainer has not asked for."""

    calls: int
    seconds: float


@dataclass
class _Kind:
    """What many calls have in common, and how many do."""

    entry: LedgerEntry
    key: tuple[object, ...]
    calls: int = 0


class _Kinds:
    """Kinds by number, each held once, and for as long as a call has it."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._kinds: dict[int, _Kind] = {}
        self._next = 0

    def entry(self, number: int) -> LedgerEntry:
        """What calls of the kind have in common."""
        return self._kinds[number].entry

    def hold(self, entry: LedgerEntry) -> int:
        """The number of the kind, which one more call has."""
        key = (
            *entry.versions,
            entry.history,
            entry.finish_reason,
            entry.constrained,
            entry.replaced,
            entry.temperatures,
        )
        number = self._numbers.get(key)
        if number is None:
            number, self._next = self._next, self._next + 1
            self._numbers[key] = number
            self._kinds[number] = _Kind(entry.model_copy(update={"times": None}), key)
        self._kinds[number].calls += 1
        return number

    def release(self, number: int) -> None:
        """A call of it is gone."""
        kind = self._kinds[number]
        kind.calls -= 1
        if not kind.calls:
            del self._numbers[kind.key], self._kinds[number]


class Ledger:
    """The ledger of one gateway pod."""

    def __init__(self, limits: LedgerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic seconds."""
        self._limits = limits
        self._clock = clock
        self._began = clock()
        # Packed, by digest: a number takes less than its digits.
        self._open: OrderedDict[int, bytes] = OrderedDict()  # not asked for yet, oldest first
        self._asked: OrderedDict[int, bytes] = OrderedDict()  # what was asked for last at the end
        self._kinds = _Kinds()
        self.forgotten = 0  # calls that ended for want of room

    def __len__(self) -> int:
        return len(self._open) + len(self._asked)

    @property
    def unasked(self) -> int:
        """Calls that the trainer has not asked for."""
        return len(self._open)

    def note(self, prompt: Sequence[int], output: Sequence[int], entry: LedgerEntry) -> None:
        """Remembers one call, which has just been answered.

        Calls with equal tokens share an entry: it names all versions that sampled them, and has the last one's times.
        """
        key = int(token_digest(prompt, output), 16)
        before = self._open.pop(key, None) or self._asked.pop(key, None)
        self._open[key] = self._packed(_merged(self._entry(before) if before else None, entry))
        if before:
            self._release(before)
        self._end_overdue()
        while len(self._open) > self._limits.calls:
            self._release(self._open.popitem(last=False)[1])
            self.forgotten += 1

    def answer(self, question: LedgerQuestion) -> LedgerAnswer:
        """The entries that are here."""
        found = {digest: entry for digest in question.digests if (entry := self._ask(digest)) is not None}
        return LedgerAnswer(entries=found, forgotten=self.forgotten, age_seconds=self._age())

    def _age(self) -> float:
        return self._clock() - self._began

    def _ask(self, digest: str) -> LedgerEntry | None:
        try:
            key = int(digest, 16)
        except ValueError:
            return None
        call = self._open.pop(key, None) or self._asked.pop(key, None)
        if call is None:
            return None
        self._asked[key] = call
        if len(self._asked) > ASKED:
            self._release(self._asked.popitem(last=False)[1])
        return self._entry(call)

    def _packed(self, entry: LedgerEntry) -> bytes:
        times = entry.times
        seconds = (times.seconds, times.queued, times.sampled) if times is not None else _UNKNOWN
        noted = int(self._age() * 1000) % _MILLISECONDS
        return _CALL.pack(self._kinds.hold(entry), noted, *(min(one, _MOST_SECONDS) for one in seconds))

    def _entry(self, call: bytes) -> LedgerEntry:
        number, _, seconds, queued, sampled = _CALL.unpack(call)
        entry = self._kinds.entry(number)
        if math.isnan(seconds):
            return entry
        ended = self._age() - self._since(call)
        times = CallTimes(seconds=seconds, queued=queued, sampled=sampled, ended=round(ended, 3))
        return entry.model_copy(update={"times": times})

    def _since(self, call: bytes) -> float:
        """Seconds since it was noted."""
        noted: int = _CALL.unpack(call)[1]
        return ((int(self._age() * 1000) - noted) % _MILLISECONDS) / 1000

    def _release(self, call: bytes) -> None:
        self._kinds.release(_CALL.unpack(call)[0])

    def _end_overdue(self) -> None:
        while self._open and self._since(next(iter(self._open.values()))) > self._limits.seconds:
            self._release(self._open.popitem(last=False)[1])


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
