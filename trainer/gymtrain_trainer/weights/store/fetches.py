"""What vLLM servers fetch now: which of them have all of a version, and which are still heard of.

A server is paused only to load, so whoever pauses it wants to know when it has everything. It says so itself, under an
id that it was given with the version, and each of its requests carries the id. Where a server spans several pods, each
of them fetches for itself.
"""

import asyncio
import secrets
import threading
import time
from concurrent.futures import Future


class Fetch:
    """One fetch of one server, by all of its pods. From any thread."""

    def __init__(self, pods: int = 1) -> None:
        self.id = secrets.token_hex(8)
        self._pods = pods
        self._done: set[str] = set()
        self._heard_at = time.monotonic()
        self._ended: Future[None] = Future()
        self._lock = threading.Lock()

    def heard(self) -> None:
        """The pod asked for something."""
        self._heard_at = time.monotonic()

    def end(self, pod: str = "") -> None:
        """A pod, named in any way, has everything, or knows that it can't have it: that it says when it is to load."""
        with self._lock:
            self._done.add(pod)
            if len(self._done) >= self._pods and not self._ended.done():
                self._ended.set_result(None)

    @property
    def silent_seconds(self) -> float:
        """Since the pod asked for something."""
        return time.monotonic() - self._heard_at

    async def ends_within(self, seconds: float) -> bool:
        """Waits; whether there is nothing to wait for any more. From any event loop."""
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._ended)), seconds)
        except TimeoutError:
            return False
        return True


class Fetches:
    """Fetches that pods were asked for, by their ids. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Fetch] = {}

    def begin(self, pods: int = 1) -> Fetch:
        """One more, of a server of so many pods. `forget` has to follow."""
        fetch = Fetch(pods)
        with self._lock:
            self._open[fetch.id] = fetch
        return fetch

    def find(self, fetch_id: str) -> Fetch | None:
        """Of an id; None for any other string."""
        with self._lock:
            return self._open.get(fetch_id)

    def forget(self, fetch: Fetch) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._open.pop(fetch.id, None)
