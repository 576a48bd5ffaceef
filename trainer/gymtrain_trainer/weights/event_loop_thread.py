"""An event loop in a thread of its own: TRL calls from the main thread and blocks, HTTP goes on here."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

_STOP_SECONDS = 10.0


class EventLoopThread:
    """Runs coroutines for other threads."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit[T](self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts `work`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for `work`, which has its own deadlines; an interrupt of this thread cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Calls `function` in the loop, soon."""
        self._loop.call_soon_threadsafe(function)

    def cancel_all(self) -> None:
        """Cancels what runs, and gives it time to clean up."""
        with contextlib.suppress(TimeoutError):
            self.submit(self._cancel_all()).result(_STOP_SECONDS)

    def stop(self) -> None:
        """Ends the loop with what still runs in it."""
        self.cancel_all()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)

    async def _cancel_all(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
