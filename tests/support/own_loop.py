"""Things of the tests that live in an event loop of their own, in a thread beside the test's."""

import asyncio
import threading
from typing import Self

_PATIENCE_SECONDS = 30.0
_JOIN_SECONDS = 10.0


class OwnLoop:
    """What `_start` makes lives until `_stop`; use as a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=type(self).__name__, daemon=True)

    async def _start(self) -> None:
        """Returns once it is ready."""
        raise NotImplementedError

    async def _stop(self) -> None:
        """Ends all that `_start` made."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_PATIENCE_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_SECONDS)
