"""Handles SIGTERM: the pod ends within its grace period.

While a step is computed, the signal only raises a flag: the step ends, a checkpoint is written, training stops.
Where the trainer merely waits (for rollouts, for a weight sync, for servers), waiting on would eat the grace period:
there the signal raises at once.

What has to end before that step does hears of it in another thread: Python runs a signal's handler in the main thread
alone, and not before the operation there has returned, which takes seconds for the backward pass of a large model.
"""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from gymtrain_trainer.errors import InterruptedBySignal


class StopSignal:
    """The flag, and the places where it raises."""

    def __init__(self) -> None:
        self.requested = False
        self._waits = 0  # depth of waiting(); only the main thread counts
        self._acts: list[Callable[[], None]] = []
        self._taking = threading.Lock()  # of acts: each is called once, whoever is first

    def install(self) -> None:
        """Takes over SIGTERM and SIGINT, and Python's file descriptor for signals; main thread only, once a process."""
        heard, told = socket.socketpair()
        told.setblocking(False)
        self._told = told  # open as long as signals come
        threading.Thread(target=self._hear, args=(heard,), name="stop", daemon=True).start()
        signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    def then(self, act: Callable[[], None]) -> None:
        """Has `act` called once the signal comes, whatever the main thread does then; in a thread of its own, or at
        once where it came before."""
        with self._taking:
            self._acts.append(act)
        if self.requested:
            self._act()

    def request(self) -> None:
        """What the signal does outside the main thread."""
        self.requested = True
        self._act()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait of the main thread that a signal should end.

        Raises:
            InterruptedBySignal: the signal came, before or meanwhile.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.check()
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1

    def check(self) -> None:
        """Raises InterruptedBySignal where the signal came."""
        if self.requested:
            raise InterruptedBySignal("SIGTERM: the pod is asked to stop")

    def _act(self) -> None:
        with self._taking:
            acts, self._acts = self._acts, []
        for act in acts:
            act()

    def _hear(self, heard: socket.socket) -> None:
        while not {signal.SIGTERM, signal.SIGINT} & set(heard.recv(64)):
            pass  # another signal that Python handles
        self.request()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if self._waits:
            self.check()
