"""Raises an alarm when no optimizer step has come for much longer than usual, and says where the time goes.

A thread of rank 0 that only reads and raises the alarm `Stalled`; the deadlines of the waits themselves end the attempt
(docs/deadlines.md). It never raises.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from gymtrain_trainer.activity import Activity, Doing
from gymtrain_trainer.monitoring.step_alarms import stall_limit
from gymtrain_trainer.progress import InFlight, ProgressBoard

log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_WINDOW = 50


class Watchdog:
    """Watches the steps of one attempt."""

    def __init__(
        self,
        board: ProgressBoard,
        activity: Activity,
        *,
        before_first_step: float,
        unsynced_pods: Callable[[], Sequence[str]] = tuple,
        evaluates: Callable[[], bool] = lambda: False,
        look_seconds: float = _LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            board: where the alarm goes.
            activity: of the main thread.
            before_first_step: seconds that the first step may take.
            unsynced_pods: vLLM pods that didn't answer when last asked.
            evaluates: whether an evaluation is under way, which has a deadline of its own: the steps wait for it.
            look_seconds: time between two looks.
            clock: monotonic seconds.
        """
        self._board = board
        self._activity = activity
        self._before_first_step = before_first_step
        self._unsynced_pods = unsynced_pods
        self._evaluates = evaluates
        self._look_seconds = look_seconds
        self._clock = clock
        self._durations: deque[float] = deque(maxlen=_WINDOW)
        self._last_step: float | None = None  # None: training hasn't begun
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def begin(self) -> None:
        """Training begins: from now on a step is due."""
        self._last_step = self._clock()
        self._activity.mark()
        self._thread.start()

    def stepped(self) -> None:
        """An optimizer step was made."""
        now = self._clock()
        if self._last_step is not None:
            self._durations.append(now - self._last_step)
        self._last_step = now
        self._activity.mark()
        self._board.clear_alarm("Stalled")

    def saving(self) -> AbstractContextManager[None]:
        """Around the writing of a checkpoint, in the main thread."""
        return self._activity.doing(Doing.SAVE)

    def end(self) -> None:
        """Training is over."""
        self._ended.set()

    def look(self) -> None:
        """Raises the alarm where a step is overdue."""
        if self._last_step is None:
            return
        if self._evaluates():
            self._last_step = self._clock()
            self._activity.mark()
            return
        waited, spent = self._clock() - self._last_step, self._activity.spent()
        if waited > stall_limit(self._durations, self._before_first_step, spent[Doing.SAVE]):
            usual = f"{sorted(self._durations)[len(self._durations) // 2]:.1f} s" if self._durations else "unknown"
            self._board.set_alarm(
                "Stalled",
                f"no optimizer step for {waited:.0f} s (usual: {usual}). "
                + where_time_goes(spent, self._board.in_flight(), self._unsynced_pods()),
            )

    def _watch(self) -> None:
        while not self._ended.wait(self._look_seconds):
            try:
                self.look()
            except Exception:  # a watchdog that ends the run would be worse than none
                log.exception("the watchdog failed; it continues")


def where_time_goes(spent: dict[Doing, float], in_flight: InFlight, unsynced: Sequence[str]) -> str:
    """One sentence."""
    parts = [f"{seconds:.0f} s {what}" for what, seconds in sorted(spent.items(), key=lambda item: -item[1])]
    text = "Since then: " + ", ".join(parts)
    if in_flight.groups:
        agents = ", ".join(f"{agent}: {count}" for agent, count in sorted(in_flight.agents.items()))
        text += (
            f"; {in_flight.groups} rollout groups in flight ({agents}), the oldest for {in_flight.oldest_seconds:.0f} s"
        )
    else:
        text += "; no rollout group in flight"
    if unsynced:
        text += f"; vLLM pods that don't answer: {', '.join(unsynced)}"
    return text
