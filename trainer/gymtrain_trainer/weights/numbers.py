"""The numbers of the versions of one attempt: each is given out once, so that no two weights share a label."""

import threading


class SyncNumbers:
    """Counts syncs. A sync that failed keeps its number: some pod may hold what it sent."""

    def __init__(self, start: int = 0) -> None:
        """`start`: the last number that was given out already."""
        self._lock = threading.Lock()
        self._given = start
        self.current = 0  # of the version that the pods are to hold; 0 before the first sync

    def next(self) -> int:
        """A number that was never given out."""
        with self._lock:
            self._given += 1
            return self._given
