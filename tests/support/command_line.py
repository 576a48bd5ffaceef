"""`gymtrain` as a user starts it, in a process of its own."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_MINUTES = 60
_INTERRUPTED = 130


class Gymtrain:
    """The command for one namespace."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        self._base = [sys.executable, "-m", "gymtrain_cli.main", "-n", namespace, "--kubeconfig", kubeconfig]
        self._environment = {
            "PYTHONPATH": ":".join(sys.path),
            "PATH": "/usr/bin:/bin",
            "NO_PROXY": "*",
            "COLUMNS": "200",
        }

    def __call__(
        self, *arguments: str, code: int = 0, seconds: float = 10 * _MINUTES
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, and asserts its exit code."""
        done = subprocess.run(
            [*self._base, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            env=self._environment,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    @contextmanager
    def live_report(self, run: str, seconds: float = 2 * _MINUTES) -> Iterator[str]:
        """The address that `gymtrain report RUN --live` prints, which is told to end afterwards, and has to."""
        process = subprocess.Popen(
            [*self._base, "report", run, "--live"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
        )
        deadline = threading.Timer(seconds, process.kill)
        deadline.start()
        try:
            said: list[str] = []
            assert process.stdout
            for line in process.stdout:
                said.append(line)
                if line.startswith("http://"):
                    break
            assert said, f"nothing within {seconds:.0f} s"
            assert said[-1].startswith("http://"), "".join(said)
            deadline.cancel()
            yield said[-1].strip()
            process.terminate()
            assert process.wait(_MINUTES) == _INTERRUPTED, "as after Ctrl-C"
        finally:
            deadline.cancel()
            process.kill()
            process.communicate()
