"""The progress of this attempt: written by trainer and rollout worker, read by the HTTP routes."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymtrain_api.status import MAX_LOST_ROLLOUTS
from gymtrain_api.wiring import Alarm, AlarmReason, LostRollouts, Notice, TrainerProgress

KEPT_SAMPLES = 64
_TERMINATION_LIMIT = 4096  # bytes that the kubelet takes of a termination message


@dataclass(frozen=True)
class InFlight:
    """The rollout groups that run now."""

    groups: int = 0
    oldest_seconds: float = 0.0  # age of the oldest
    agents: Mapping[str, int] = field(default_factory=dict)  # groups by agent


@dataclass(frozen=True)
class Loss:
    """A way in which rollouts were lost."""

    environment: str  # agent
    kind: str  # errors.FailureKind
    zeroed: bool  # counted with reward 0; else dropped from their group


class ProgressBoard:
    """Thread-safe holder of the `TrainerProgress`, the last samples and the step's numbers for /metrics."""

    def __init__(self, progress: TrainerProgress | None = None) -> None:
        self._lock = threading.Lock()
        self._progress = progress or TrainerProgress(phase="starting", updated_at=time.time())
        self._samples: deque[dict[str, Any]] = deque(maxlen=KEPT_SAMPLES)
        self._numbers: dict[str, float] = {}
        self._tallies: Counter[tuple[str, str]] = Counter()
        self._evaluation: dict[str, dict[str, float]] = {}
        self._lost: Counter[Loss] = Counter()
        self.in_flight: Callable[[], InFlight] = InFlight  # the rollout worker puts its own here

    def update(self, **fields: Any) -> None:
        """Sets fields of the progress and its time."""
        with self._lock:
            self._progress = self._progress.model_copy(update=fields | {"updated_at": time.time()})

    def count(self, field: str, by: int = 1) -> None:
        """Adds to a counter of the progress."""
        with self._lock:
            value = getattr(self._progress, field) + by
            self._progress = self._progress.model_copy(update={field: value, "updated_at": time.time()})

    def tally(self, name: str, label: str = "", by: int = 1) -> None:
        """Adds to a counter that only /metrics shows."""
        with self._lock:
            self._tallies[name, label] += by

    def tallies(self, name: str) -> dict[str, int]:
        """Such a counter by label."""
        with self._lock:
            return {label: count for (counter, label), count in self._tallies.items() if counter == name}

    def lose(self, environment: str, kind: str, *, zeroed: bool) -> None:
        """Counts a rollout that failed for good; the progress has those with the most."""
        with self._lock:
            self._lost[Loss(environment, kind, zeroed)] += 1
            sums: Counter[tuple[str, str]] = Counter()
            for loss, count in self._lost.items():
                sums[loss.environment, loss.kind] += count
            most = sorted(sums.items(), key=lambda one: (-one[1], one[0]))[:MAX_LOST_ROLLOUTS]
            told = [LostRollouts(environment=name, kind=kind, rollouts=count) for (name, kind), count in most]
            self._progress = self._progress.model_copy(update={"lost_rollouts": told, "updated_at": time.time()})

    def lost(self) -> dict[Loss, int]:
        """Rollouts that failed for good."""
        with self._lock:
            return dict(self._lost)

    def set_alarm(self, reason: AlarmReason, message: str) -> None:
        """Raises an alarm; one that stands already keeps its time."""
        with self._lock:
            others = [alarm for alarm in self._progress.alarms if alarm.reason != reason]
            since = next((alarm.since for alarm in self._progress.alarms if alarm.reason == reason), time.time())
            alarm = Alarm(reason=reason, message=message, since=since)
            if len(others) == len(self._progress.alarms):
                self._tallies["alarms", reason] += 1
            self._progress = self._progress.model_copy(update={"alarms": [*others, alarm], "updated_at": time.time()})

    def clear_alarm(self, reason: AlarmReason) -> None:
        """Ends an alarm, if it stands."""
        with self._lock:
            left = [alarm for alarm in self._progress.alarms if alarm.reason != reason]
            if len(left) < len(self._progress.alarms):
                self._progress = self._progress.model_copy(update={"alarms": left, "updated_at": time.time()})

    def notice(self, reason: str, message: str) -> None:
        """Adds a notice about something that happened once. It stays while the process lives, one per reason."""
        with self._lock:
            others = [told for told in self._progress.notices if told.reason != reason]
            notices = [*others, Notice(reason=reason, message=message)]
            self._progress = self._progress.model_copy(update={"notices": notices, "updated_at": time.time()})

    def snapshot(self) -> TrainerProgress:
        """The progress now."""
        with self._lock:
            return self._progress

    def add_sample(self, sample: dict[str, Any]) -> None:
        """Keeps a sample for people to look at; the oldest goes."""
        with self._lock:
            self._samples.append(sample)

    def samples(self, limit: int = KEPT_SAMPLES) -> list[dict[str, Any]]:
        """The last samples, newest first."""
        with self._lock:
            return list(self._samples)[::-1][:limit]

    def set_numbers(self, numbers: dict[str, float]) -> None:
        """Replaces the last step's numbers, which /metrics shows."""
        with self._lock:
            self._numbers = dict(numbers)

    def numbers(self) -> dict[str, float]:
        """The last step's numbers by name."""
        with self._lock:
            return dict(self._numbers)

    def set_evaluation(self, numbers: dict[str, dict[str, float]]) -> None:
        """Replaces the last evaluation's numbers by environment, which /metrics shows."""
        with self._lock:
            self._evaluation = dict(numbers)

    def evaluation(self) -> dict[str, dict[str, float]]:
        """The last evaluation's numbers by environment and name."""
        with self._lock:
            return dict(self._evaluation)


def write_termination_message(progress: TrainerProgress, path: Path) -> None:
    """Leaves the progress where the kubelet picks it up. What is too long loses the end of the list of lost rollouts,
    then the middle of the message.

    Never raises: it runs while the process ends, and outside a pod there may be no such file.
    """
    text = progress.model_dump_json()
    while len(text.encode()) > _TERMINATION_LIMIT and progress.lost_rollouts:
        progress = progress.model_copy(update={"lost_rollouts": progress.lost_rollouts[:-1]})
        text = progress.model_dump_json()
    while len(text.encode()) > _TERMINATION_LIMIT and len(progress.message) > 40:
        keep = len(progress.message) * 2 // 5
        short = progress.message[:keep] + " [...] " + progress.message[-keep:]
        progress = progress.model_copy(update={"message": short})
        text = progress.model_dump_json()
    try:
        path.write_text(text)
    except OSError:
        print(text, flush=True)
