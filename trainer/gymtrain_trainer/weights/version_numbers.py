"""The numbers of weight versions, and three names of one version: TRL's model version, the number in the label, the
label that vLLM carries.

TRL counts its syncs from 1 in each process. A run that was suspended goes on within the same attempt, in a new process,
so labels count on from those that the attempt used: a label never names two versions.

| TRL's model version | label, first process | label, after a suspension at 7 |
|---|---|---|
| 1 | run:1:1 | run:1:16 |
| 2 | run:1:2 | run:1:17 |

The gap: numbers are noted some ahead, because a sync may use more than one (a transport that tries again).
"""

import bisect
import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from gymtrain_api.weight_version import WeightVersion

log = logging.getLogger(__name__)

SYNC_FILE = ".gymtrain-sync"  # last number that the attempt may have used, below the run's folder
_AHEAD = 8


class SyncNumbers:
    """Numbers and labels of one process of an attempt. Written by the threads of weight sync, read by any.

    A number is given out once, so that no two weights share a label: a sync that failed keeps its number, because some
    pod may hold what it sent.
    """

    def __init__(self, run: str, attempt: int, start: int = 0) -> None:
        """`start`: the last number that an earlier process of the attempt may have used."""
        self.run = run
        self.attempt = attempt
        self.start = start
        self.given = start  # the last one
        self.current = 0  # of the version that the pods are to hold; 0 before the first sync
        self.on_arrival: Callable[[], None] | None = None  # the pods hold a newer version; called from any thread
        self._lock = threading.Lock()
        self._numbers: list[int] = []  # of the labels of model versions 1, 2, ...

    def next(self) -> int:
        """A number that was never given out."""
        with self._lock:
            self.given += 1
            return self.given

    def arrived(self, number: int) -> None:
        """The pods hold the version of this number."""
        self.current = number
        if self.on_arrival is not None:
            self.on_arrival()

    def sent(self, label: str) -> None:
        """The next model version is on the pods, as `label`.

        Raises:
            ValueError: the label isn't this attempt's, or not newer than the last.
        """
        number = self._number(label)
        with self._lock:
            if number is None or number <= (self._numbers[-1] if self._numbers else self.start):
                raise ValueError(f"weight version {label!r} after {self._numbers[-1:] or self.start}")
            self._numbers.append(number)

    @property
    def held(self) -> int:
        """The model version that the pods hold: that of the last sync, or the one before while it is under way."""
        with self._lock:
            return bisect.bisect_left(self._numbers, self.current) + 1 if self.current else 0

    @property
    def model_versions(self) -> int:
        """TRL's model versions that are on the pods."""
        return len(self._numbers)

    def label(self, model_version: int) -> str:
        """What vLLM says when it holds TRL's version `model_version`."""
        with self._lock:
            known = 1 <= model_version <= len(self._numbers)
            number = self._numbers[model_version - 1] if known else self.start + model_version
        return str(WeightVersion(self.run, self.attempt, number))

    def model_version(self, label: str) -> int | None:
        """TRL's version of a label; None for another run, another attempt, or anything else.

        A label of this attempt's earlier process is 0 or less: older than everything that this one trained. A number
        between two versions is of a sync that was tried again: the weights are those of the later version. A number
        beyond the last is of the version that is being sent now.
        """
        number = self._number(label)
        if number is None:
            return None
        if number <= self.start:
            return number - self.start
        with self._lock:
            return bisect.bisect_left(self._numbers, number) + 1

    def _number(self, label: str) -> int | None:
        return WeightVersion.number_in(label, self.run, self.attempt)


class SyncNumberFile:
    """Remembers on the checkpoint volume which numbers the attempt has used."""

    def __init__(self, folder: Path | None, attempt: int) -> None:
        """`folder`: the run's own, already claimed; None without a checkpoint volume, where a suspended run begins
        again and its vLLM pods and gateways are new too."""
        self._path = folder / SYNC_FILE if folder is not None else None
        self._attempt = attempt

    def last(self) -> int:
        """The last number that this attempt may have used; 0 if none."""
        if self._path is None:
            return 0
        try:
            noted = json.loads(self._path.read_text())
            return int(noted["number"]) if noted["attempt"] == self._attempt else 0
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s is unreadable (%s): weight versions of this attempt count from 1", self._path, error)
            return 0

    def reserve(self, after: int) -> None:
        """Notes the numbers after `after` before any pod hears of them. A full volume doesn't end the run here."""
        if self._path is None:
            return
        number = after + _AHEAD
        draft = self._path.with_name(f"{SYNC_FILE}.new")
        try:
            draft.write_text(json.dumps({"attempt": self._attempt, "number": number}))
            draft.rename(self._path)
        except OSError as error:
            log.warning("cannot note weight version %d in %s: %s", number, self._path, error)


def foreign_weights(
    before: Mapping[str, str | None], after: Mapping[str, str | None], run: str, attempt: int
) -> str | None:
    """Which pod held weights that are not this attempt's, and when; None if no pod that answered did.

    Args:
        before: version by pod when the group started; None if the pod did not answer.
        after: the same when it ended.
        run: name of the run.
        attempt: number of the attempt.
    """
    prefix = f"{run}:{attempt}:"
    for moment, versions in (("started", before), ("ended", after)):
        for pod, version in versions.items():
            if version is not None and not version.startswith(prefix):
                return f"{pod} held weights {version!r}, not {prefix}*, when the group {moment}"
    return None
