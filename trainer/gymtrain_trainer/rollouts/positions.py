"""Which rows of the draw order are open: in flight, to be drawn again, or not drawn yet. Safe between threads."""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from gymtrain_trainer.progress import InFlight

# Of a row whose groups are dropped for the row's own sake: one that always takes too long, or makes more calls than the
# ledger holds, would take the place of others forever.
REDRAWS = 5


@dataclass(frozen=True, eq=False)
class Draw:
    """One running group. Two of the same position are two: the later may begin before the earlier is noted as ended."""

    position: int
    began: float  # time.monotonic()
    agent: str


class Positions:
    """The account of draws."""

    def __init__(self, start: int) -> None:
        """`start`: the first position that was never drawn."""
        self._lock = threading.Lock()
        self._next = start
        self._again: deque[int] = deque()
        self._redraws: Counter[int] = Counter()
        self._open: set[Draw] = set()

    def draw(self) -> int:
        """The position to work on now."""
        with self._lock:
            if self._again:
                return self._again.popleft()
            self._next += 1
            return self._next - 1

    def upcoming(self, count: int) -> list[int]:
        """The positions that come next, as far as is known now."""
        with self._lock:
            again = list(self._again)[:count]
            return again + list(range(self._next, self._next + count - len(again)))

    def begin(self, position: int, agent: str) -> Draw:
        """A group runs; what is returned ends it."""
        draw = Draw(position, time.monotonic(), agent)
        with self._lock:
            self._open.add(draw)
        return draw

    def end(self, draw: Draw) -> None:
        """Notes that the group has ended."""
        with self._lock:
            self._open.discard(draw)

    def again(self, position: int) -> None:
        """The position is drawn again before any new one."""
        with self._lock:
            self._again.append(position)

    def again_unless_hopeless(self, position: int) -> bool:
        """Does the same up to a limit; returns False beyond it."""
        with self._lock:
            self._redraws[position] += 1
            if self._redraws[position] > REDRAWS:
                del self._redraws[position]
                return False
            self._again.append(position)
            return True

    def first_open(self, others: Iterable[int]) -> int:
        """The first position that isn't done; `others` are open for reasons of the caller's."""
        with self._lock:
            running = [draw.position for draw in self._open]
            return min([*running, *self._again, *others], default=self._next)

    def in_flight(self) -> InFlight:
        """The running groups."""
        with self._lock:
            began = [draw.began for draw in self._open]
            return InFlight(
                groups=len(began),
                oldest_seconds=time.monotonic() - min(began) if began else 0.0,
                agents=Counter(draw.agent for draw in self._open),
            )
