"""A fetch in a thread of its own, while the server goes on generating."""

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from gymtrain_api.manifest import PullUpdate
from gymtrain_vllm.errors import FetchError
from gymtrain_vllm.fetch import discard, fetch, sweep

logger = logging.getLogger("vllm.gymtrain")


class FetchAhead:
    """At most one fetch that was begun and not asked for yet."""

    def __init__(self, base: Path | None = None) -> None:
        """`base`: folder to work in, as for `fetch`."""
        self._base = base
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="weights-ahead")
        self._begun: PullUpdate | None = None
        self._stop = threading.Event()
        self._files: Future[list[Path]] | None = None

    def begin(self, update: PullUpdate) -> None:
        """Starts to fetch; what was begun before and not asked for is given up."""
        self.give_up()
        sweep(update, self._base)  # here, not in the thread: later, another worker might be at a later version already
        self._begun, self._stop = update, threading.Event()
        self._files = self._pool.submit(fetch, update, self._base, self._stop)

    def files(self, update: PullUpdate) -> list[Path]:
        """The files of a version: those of the fetch that was begun, or fetched now.

        Raises:
            FetchError: anything is missing, late, damaged, or of another version.
        """
        begun = self._begun
        if begun is None or (begun.manifest_url, begun.version) != (update.manifest_url, update.version):
            self.begin(update)
        assert self._files is not None
        files, self._begun, self._files = self._files, None, None
        try:
            return files.result(update.timeout_seconds)
        except TimeoutError:
            self._stop.set()
            raise FetchError(f"{update.manifest_url}: not done in {update.timeout_seconds:.0f} s") from None

    def give_up(self) -> None:
        """Ends a fetch that nobody asked for, and frees its space."""
        self._stop.set()
        files, self._begun, self._files = self._files, None, None
        if files is not None:
            files.add_done_callback(_forget)

    def close(self) -> None:
        """No more fetches."""
        self.give_up()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _forget(files: Future[list[Path]]) -> None:
    if not files.cancelled() and files.exception() is None:
        discard(files.result())
