"""Calls of others' code that must not end training: they run in a thread of their own, in order.

```
trainer's thread    call(a) ─► call(b) ─► call(c) ...         never waits, never raises
                        │ at most 64 wait
own thread              └─► a ─► b (raises) ─► c ...           3 errors in a row, or a call that hangs: switched off
```

A thread that hangs in a library can't be ended. It is left behind; it is a daemon's, and the process ends without it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)

_DEADLINE = 300.0  # seconds; a W&B that can't reach its server gives up its start after 90
_WAITING = 64  # calls
_FAILURES = 3  # in a row
_SHOWN = 300  # characters of an error


class GuardedCalls:
    """Runs calls until they fail for good. `call` and `end` belong to one thread."""

    def __init__(self, name: str, tell: Callable[[str | None], None], *, deadline: float = _DEADLINE) -> None:
        """
        Args:
            name: of what is called, for people.
            tell: told why calls fail, from any thread, and None once they work again. Must not raise.
            deadline: seconds of one call.
        """
        self._name = name
        self._tell = tell
        self._deadline = deadline
        self._changed = threading.Condition()
        self._calls: deque[tuple[Callable[[], object], bool]] = deque()
        self._running_since: float | None = None
        self._failures = 0
        self._off = False
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=f"guarded-{name}", daemon=True)
        self._thread.start()

    @property
    def off(self) -> bool:
        """Whether nothing is called any more."""
        return self._off

    def call(self, do: Callable[[], object], *, vital: bool = False) -> None:
        """Hands a call over. `vital`: calls after it make no sense if it fails, so that switches all off at once."""
        with self._changed:
            if self._off or self._ending:
                return
            if self._running_since is not None and time.monotonic() - self._running_since > self._deadline:
                self._switch_off(f"did not answer for {self._deadline:g} s")
                return
            if len(self._calls) >= _WAITING:
                self._switch_off(f"is too slow: {_WAITING} reports wait")
                return
            self._calls.append((do, vital))
            self._changed.notify()

    def end(self, seconds: float) -> bool:
        """Waits for the calls that were handed over; False if they aren't done, and are left behind."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(seconds)
        if not self._thread.is_alive():
            return True
        with self._changed:
            if not self._off:
                self._switch_off(f"did not end within {seconds:g} s, so its last reports may be missing")
        return False

    def _switch_off(self, why: str) -> None:
        """With the lock held."""
        self._off = True
        self._calls.clear()
        self._changed.notify()
        log.warning("reporter %s is switched off: it %s", self._name, why)
        self._tell(why)

    # --- own thread ---

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._ending or self._off)
                if self._off or not self._calls:
                    return
                do, vital = self._calls.popleft()
                self._running_since = time.monotonic()
            error: BaseException | None = None
            try:
                do()
            except BaseException as raised:  # W&B raises SystemExit and the like, too; this thread has nobody to tell
                error = raised
            with self._changed:
                self._running_since = None
                if not self._off:  # else it came back too late
                    self._judge(error, vital=vital)

    def _judge(self, error: BaseException | None, *, vital: bool) -> None:
        if error is None:
            if self._failures:
                self._tell(None)
            self._failures = 0
            return
        self._failures += 1
        why = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:_SHOWN]}"
        if vital or self._failures >= _FAILURES:
            self._switch_off(why)
        else:
            log.warning("reporter %s %s", self._name, why)
            self._tell(why)
