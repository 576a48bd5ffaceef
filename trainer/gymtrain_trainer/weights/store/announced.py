"""A manifest that grows: the threads that write weights add lines, HTTP requests of any event loop follow them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial

from gymtrain_api.manifest import WeightEnd, WeightHead, WeightPart
from gymtrain_trainer.weights.store.layout import Layout

_ALIVE_SECONDS = 5.0  # without a line: then an empty one, so that the reader can tell slow from gone


class AnnouncedManifest:
    """The manifest of one version."""

    def __init__(self, version: str, expected_bytes: int) -> None:
        """`expected_bytes`: of all files, as far as known before they are written."""
        self._version = version
        self._expected_bytes = expected_bytes
        self._lines: list[bytes] = []
        self._lock = threading.Lock()
        self._closed = False
        self._followers: list[Callable[[], object]] = []
        self.parts = 0
        self.total_bytes = 0
        self.fresh_bytes = 0  # of parts that no version before had
        self.layout: Layout | None = None  # of the whole version, once it is complete
        self.complete = False

    def add(self, part: WeightPart, *, carried: bool = False) -> None:
        """One more part lies in its file; `carried`: as it did in the version before. From any thread."""
        with self._lock:
            self._lines.append(part.line())
            self.parts += 1
            self.total_bytes += part.bytes
            self.fresh_bytes += 0 if carried else part.bytes
        self._wake()

    def end(self, layout: Layout | None = None) -> None:
        """No part is missing."""
        with self._lock:
            self.layout = layout
            self._lines.append(WeightEnd(parts=self.parts).line())
            self.complete = self._closed = True
        self._wake()

    def break_off(self) -> None:
        """No more lines will come: whoever follows learns that the version is withdrawn."""
        with self._lock:
            self._closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[bytes]:
        """All lines, as they come; empty ones while none comes."""
        loop, sent = asyncio.get_running_loop(), 0
        size = self.total_bytes if self.complete else self._expected_bytes
        yield WeightHead(version=self._version, bytes=size).line()
        while True:
            changed = asyncio.Event()
            with self._lock:
                fresh, closed = self._lines[sent:], self._closed
                if not fresh and not closed:
                    self._followers.append(partial(loop.call_soon_threadsafe, changed.set))
            if fresh:
                sent += len(fresh)
                yield b"".join(fresh)
            elif closed:
                return
            else:
                try:
                    async with asyncio.timeout(_ALIVE_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield b"\n"

    def _wake(self) -> None:
        with self._lock:
            followers, self._followers = self._followers, []
        for wake in followers:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                wake()
