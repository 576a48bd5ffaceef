"""Which rows of the draw order are done, and which are open: running, waiting, to be drawn again, or not drawn yet.

Every position ends in one way: it is `done`, trained on or given up with a reason that the report has. A checkpoint
keeps the first open position and those after it that are done, so a run that resumes draws each row exactly once.

Safe between threads.
"""

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gymtrain_trainer.data.order import Place
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

    def __init__(self, start: Place) -> None:
        """`start`: of the checkpoint, if there is one."""
        self._lock = threading.Lock()
        self._first_open = self._next = start.first_open
        self._done = set(start.done)
        self._again: deque[int] = deque()
        self._redraws: Counter[int] = Counter()
        self._open: set[Draw] = set()

    def draw(self) -> int:
        """The position to work on now."""
        with self._lock:
            if self._again:
                return self._again.popleft()
            position = next(self._new())
            self._next = position + 1
            return position

    def upcoming(self, count: int) -> list[int]:
        """The positions that come next, as far as is known now."""
        with self._lock:
            return list(itertools.islice(itertools.chain(self._again, self._new()), count))

    def _new(self) -> Iterator[int]:
        """Those that were never drawn."""
        start = max(self._next, self._first_open)
        return (position for position in itertools.count(start) if position not in self._done)

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
                return False
            self._again.append(position)
            return True

    def done(self, positions: Collection[int]) -> None:
        """They were trained on, or given up: nobody draws them again."""
        with self._lock:
            self._done.update(positions)
            for position in positions:
                self._redraws.pop(position, None)
            while self._first_open in self._done:
                self._done.remove(self._first_open)
                self._first_open += 1

    def place(self) -> Place:
        """Where the run is now."""
        with self._lock:
            return Place(self._first_open, tuple(sorted(self._done)))

    def in_flight(self) -> InFlight:
        """The running groups."""
        with self._lock:
            began = [draw.began for draw in self._open]
            return InFlight(
                groups=len(began),
                oldest_seconds=time.monotonic() - min(began) if began else 0.0,
                agents=Counter(draw.agent for draw in self._open),
            )
