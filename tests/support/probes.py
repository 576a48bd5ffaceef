"""The kubelet's HTTP probes of one container, played as its manifest states them."""

import threading
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Self

type Probe = dict[str, Any]


@dataclass
class Probes:
    """Probes a server on 127.0.0.1; use as a context manager.

    Attributes:
        ready: what the pod's condition would say.
        failures: probes that failed, by kind.
        restarts: why the kubelet would have restarted the container; it is not.
    """

    container: dict[str, Any]
    port: int
    ready: threading.Event = field(default_factory=threading.Event)
    failures: dict[str, int] = field(default_factory=dict)
    restarts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._begin = threading.Thread(target=self._startup, daemon=True)

    def __enter__(self) -> Self:
        self._begin.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in [self._begin, *self._threads]:
            thread.join(30)

    def _startup(self) -> None:
        """Until it has succeeded once no other probe is made."""
        probe = self.container.get("startupProbe")
        if probe and not self._succeeds_in_time("startupProbe", probe):
            return
        for kind, watch in (("livenessProbe", self._liveness), ("readinessProbe", self._readiness)):
            thread = threading.Thread(target=watch, args=(kind, self.container[kind]), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _succeeds_in_time(self, kind: str, probe: Probe) -> bool:
        self._stop.wait(probe.get("initialDelaySeconds", 0))
        for _ in range(probe.get("failureThreshold", 3)):
            if self._stop.is_set() or self._asked(kind, probe):
                return True
            self._stop.wait(probe.get("periodSeconds", 10))
        self.restarts.append(f"{kind}: not started within {probe}")
        return False

    def _liveness(self, kind: str, probe: Probe) -> None:
        failed = 0
        self._stop.wait(probe.get("initialDelaySeconds", 0))
        while not self._stop.is_set():
            failed = 0 if self._asked(kind, probe) else failed + 1
            if failed >= probe.get("failureThreshold", 3):
                self.restarts.append(f"{kind}: {failed} failures in a row of {probe}")
                failed = 0
            self._stop.wait(probe.get("periodSeconds", 10))

    def _readiness(self, kind: str, probe: Probe) -> None:
        while not self._stop.is_set():
            if self._asked(kind, probe):
                self.ready.set()
            self._stop.wait(probe.get("periodSeconds", 10))

    def _asked(self, kind: str, probe: Probe) -> bool:
        url = f"http://127.0.0.1:{self.port}{probe['httpGet']['path']}"
        begin = time.monotonic()
        try:
            with urllib.request.urlopen(url, timeout=probe.get("timeoutSeconds", 1)) as answer:
                answer.read()
                if time.monotonic() - begin <= probe.get("timeoutSeconds", 1):
                    return True
        except OSError:  # urllib's errors are OSErrors
            pass
        self.failures[kind] = self.failures.get(kind, 0) + 1
        return False
