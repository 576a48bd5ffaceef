"""The operator as a process of the tests, with the chart's rights and no more."""

import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from tests.support.apiserver import free_port
from tests.support.cgroups import join
from tests.support.kubectl import eventually

_ROOT = Path(__file__).parents[2]
# 3 s and 1 s on an idle machine.
_START_SECONDS = 300
_STOP_SECONDS = 60


class OperatorProcess:
    """`python -m gymtrain_operator` outside the cluster; use as a context manager."""

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        *flags: str,
        source: Path = _ROOT / "operator",
        cgroup: Path | None = None,
        preload: Path | None = None,
    ) -> None:
        """`source` is the operator's folder, with `api` and `kube` beside it; `cgroup` the `cgroup.procs` of the group
        that it starts in; `preload` a folder whose `sitecustomize.py` runs before it."""
        self.port = free_port()
        self._log = log
        self._cgroup = cgroup
        self._command = [sys.executable, "-m", "gymtrain_operator", f"--port={self.port}", *flags]
        beside = (source.parent / "api", source.parent / "kube")
        paths = [str(path) for path in (preload, source, *beside) if path]
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": os.pathsep.join(paths)}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGTERM)

    def start(self) -> None:
        """Starts it and waits until it is ready."""
        self.launch()
        eventually(self._ready, f"the operator is ready (log: {self._log})", _START_SECONDS, every=0.2)

    def launch(self) -> None:
        """Starts it."""
        enter = partial(join, self._cgroup) if self._cgroup else None
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._env, stdout=log, stderr=subprocess.STDOUT, preexec_fn=enter
            )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends it: SIGTERM as a rollout does, SIGKILL as a lost node does."""
        self.process.send_signal(how)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def metrics(self) -> dict[str, float]:
        """Its metrics, by name with labels."""
        return read_metrics(self.port)

    def errors(self) -> dict[str, float]:
        """How many reconciles ended in each error; but for conflicts, of which a single one is ordinary."""
        name = "gymtrain_operator_reconcile_errors_total{"
        found = {series: value for series, value in self.metrics().items() if series.startswith(name) and value}
        return {series: value for series, value in found.items() if "ConflictError" not in series}

    def resident_mb(self) -> float:
        """Resident memory in MB (10^6 bytes)."""
        return self.metrics()["process_resident_memory_bytes"] / 1e6

    def peak_mb(self) -> float:
        """The most resident memory that it ever had, in MB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6

    def _ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(
                f"the operator ended with {self.process.returncode}; its log:\n{self._log.read_text()[-3000:]}"
            )
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
        return False


def read_metrics(port: int) -> dict[str, float]:
    """Metrics that a process of this machine serves, by name with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}
