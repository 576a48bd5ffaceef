"""What weight sync reports of itself."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class SyncEvent:
    """Something that an observer may log or count."""

    kind: Literal["sync", "repair", "retry", "pod_failed"]
    version: str
    seconds: float = 0.0
    bytes: int = 0
    pods: int = 0
    message: str = ""


@dataclass
class SyncStats:
    """Counters since the start, and figures of the last sync. Written by one thread at a time, read by any."""

    syncs: int = 0
    bytes_staged: int = 0
    last_bytes: int = 0  # what a pod fetches that holds the version before
    last_seconds: float = 0.0  # of the whole sync
    last_stage_seconds: float = 0.0  # writing files; vLLM goes on generating meanwhile
    last_pause_seconds: float = 0.0  # the longest pause of a pod
    last_parity: float | None = None  # mean |difference| of log-probabilities, when last checked
    retries: int = 0
    repairs: int = 0
    unreachable: list[str] = field(default_factory=list)  # pods that didn't answer at the last look

    def synced(self, size: int, seconds: float, stage_seconds: float, pause_seconds: float) -> None:
        """Counts one sync."""
        self.syncs += 1
        self.bytes_staged += size
        self.last_bytes = size
        self.last_seconds, self.last_stage_seconds = seconds, stage_seconds
        self.last_pause_seconds = pause_seconds
