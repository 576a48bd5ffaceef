"""What was seen of a trainer, in the order in which it happened. Written by the servers' threads."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from gymtrain_api.wiring import TrainerProgress, WeightsHeld


@dataclass(frozen=True)
class Event:
    """Something that happened; `at` by the monotonic clock."""

    at: float = field(default_factory=time.monotonic, kw_only=True)


@dataclass(frozen=True)
class Started(Event):
    """The process of an attempt was started."""

    attempt: int


@dataclass(frozen=True)
class Ended(Event):
    """A process ended by itself, or was killed because it did not end in time."""

    code: int
    killed: bool = False
    last_words: str = ""  # its termination message


@dataclass(frozen=True)
class ServersUp(Event):
    """The servers answer from now on."""


@dataclass(frozen=True)
class Stopped(Event):
    """SIGTERM was sent."""


@dataclass(frozen=True)
class Rollout(Event):
    """A POST /run came.

    Attributes:
        problem: what is wrong with its row or its agent; empty where nothing is.
        temperature: that it asks for.
        label: of the weights that vLLM held.
        open: rollouts that were open, with this one.
        fails: it is answered with an error on purpose.
    """

    problem: str
    temperature: object
    label: str
    open: int
    fails: bool = False


@dataclass(frozen=True)
class Update(Event):
    """An update of weights was finished.

    Attributes:
        label: that the pod holds from now on.
        asked: the version that the update named; empty where the update was closed without one.
        problem: what is wrong with what was sent; empty where nothing is.
    """

    label: str
    asked: str
    problem: str = ""


@dataclass(frozen=True)
class Lost(Event):
    """vLLM restarted: it holds random weights."""


@dataclass(frozen=True)
class Look(Event):
    """One look at the trainer's port.

    Attributes:
        progress, held: what it answered; None where it answers nothing or no 200.
        problem: a 200 with another document; empty where there is none.
        paused: whether vLLM was paused.
        updating: whether an update was open.
        label: what vLLM held.
    """

    progress: TrainerProgress | None
    held: WeightsHeld | None
    problem: dict[str, str]
    paused: bool
    updating: bool
    label: str


class Record:
    """All events."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        """Notes an event. From any thread."""
        with self._lock:
            self._events.append(event)

    def all(self) -> list[Event]:
        """The events until now."""
        with self._lock:
            return list(self._events)

    def of[E: Event](self, kind: type[E]) -> list[E]:
        """The events of a kind."""
        return [event for event in self.all() if isinstance(event, kind)]

    def attempts(self) -> Iterator[tuple[int, list[Event]]]:
        """The events of each attempt."""
        events = self.all()
        starts = [index for index, event in enumerate(events) if isinstance(event, Started)]
        for start, end in zip(starts, [*starts[1:], len(events)], strict=True):
            first = events[start]
            assert isinstance(first, Started)
            yield first.attempt, events[start:end]
