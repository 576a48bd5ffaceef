"""kubectl as the tests use it: the commands that a user would type, with a deadline each."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.reading import KubectlError as KubectlError
from tests.support.reading import Reader

type Objects = list[dict[str, Any]]

PATIENCE = 300.0
"""Seconds after which what a test waits for won't come any more, on a machine whose cores are all taken. How long it
should take is another question."""


class Kubectl:
    """kubectl in one namespace."""

    def __init__(self, kubeconfig: str, namespace: str, program: str = "kubectl") -> None:
        self.namespace = namespace
        self._base = [program, "--kubeconfig", kubeconfig, "--namespace", namespace]
        self._reader = Reader(kubeconfig, namespace)

    def run(self, *args: str, stdin: str | None = None, timeout: float = 60, check: bool = True) -> str:
        """Standard output of one command.

        Raises:
            KubectlError: the command failed and `check` is set.
        """
        done = subprocess.run(
            [*self._base, *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=os.environ,
        )
        if check and done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def lines_until(self, word: str, *args: str, timeout: float) -> list[str]:
        """What a command prints that goes on for ever, such as `get -w`, up to the line with a word.

        Raises:
            KubectlError: the line didn't come in time, or the command ended before it.
        """
        lines: list[str] = []
        with subprocess.Popen([*self._base, *args], stdout=subprocess.PIPE, text=True, env=os.environ) as process:
            deadline = threading.Timer(timeout, process.terminate)
            deadline.start()
            try:
                assert process.stdout
                for line in process.stdout:
                    lines.append(line.rstrip("\n"))
                    if word in line:
                        return lines
            finally:
                deadline.cancel()
                process.terminate()
        raise KubectlError(f"kubectl {' '.join(args)}: no line with {word!r} within {timeout:.0f} s: {lines}")

    def apply(self, *objects: dict[str, Any]) -> None:
        """`kubectl apply -f -`."""
        self.run("apply", "-f", "-", stdin="\n---\n".join(json.dumps(o) for o in objects))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object.

        Raises:
            KubectlError: it isn't there, or can't be read.
        """
        if Reader.knows(kind):
            return self._reader.get(kind, name)
        found: dict[str, Any] = json.loads(self.run("get", kind, name, "-o", "json"))
        return found

    def list(self, kinds: str, selector: str | None = None) -> Objects:
        """Objects of one or more kinds (comma-separated)."""
        if Reader.knows(kinds):
            return self._reader.list(kinds, selector)
        args = ["get", kinds, "-o", "json", *(["-l", selector] if selector else [])]
        items: Objects = json.loads(self.run(*args))["items"]
        return items

    def pods(self, run: str, **labels: str) -> Objects:
        """Pods of a run, by gymtrain.dev/ labels such as role="gym"."""
        pairs = [f"gymtrain.dev/run={run}", *(f"gymtrain.dev/{k}={v}" for k, v in labels.items())]
        return self.list("pods", ",".join(pairs))

    def logs(self, pod: str, container: str) -> str:
        """Log of one container."""
        return self.run("logs", pod, "-c", container)

    def condition(self, run: str, kind: str) -> dict[str, Any]:
        """A condition of a run; empty where it isn't there."""
        return self._conditions(run).get(kind, {})

    def _conditions(self, run: str) -> dict[str, dict[str, Any]]:
        status = self.get("gymtrainingrun", run).get("status", {})
        return {condition["type"]: condition for condition in status.get("conditions", [])}

    def wait_condition(self, run: str, kind: str, timeout: float) -> None:
        """Waits for the condition, or for the run's end; the run's whole status is in the error."""

        def over() -> dict[str, dict[str, Any]] | None:
            conditions = self._conditions(run)
            ended = any(conditions.get(one, {}).get("status") == "True" for one in (kind, "Complete", "Failed"))
            return conditions if ended else None

        try:
            conditions = eventually(over, f"run {run} is {kind}", timeout)
            if conditions is None or conditions.get(kind, {}).get("status") != "True":
                raise KubectlError(f"run {run} ended before it was {kind}")
        except AssertionError as error:
            status = self.get("gymtrainingrun", run).get("status", {})
            raise KubectlError(f"{error}\nstatus: {json.dumps(status, indent=1)}\n{self.describe_pods(run)}") from error

    def describe_pods(self, run: str) -> str:
        """Pods and the ends of their logs: what one wants to read when a test failed."""
        parts = [self.run("get", "pods", "-o", "wide", check=False)]
        for pod in self.pods(run):
            name = pod["metadata"]["name"]
            parts.append(f"--- {name}\n" + self.run("logs", name, "--all-containers", "--tail=25", check=False))
        return "\n".join(parts)


def eventually[T](probe: Callable[[], T], what: str, timeout: float, every: float = 1.0) -> T:
    """The first truthy value of `probe`.

    Raises:
        AssertionError: there was none in `timeout` seconds.
    """
    end = time.monotonic() + timeout
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout:.0f} s: {what} (last: {value!r})")
        time.sleep(every)


def names(objects: Iterable[dict[str, Any]]) -> list[str]:
    """kind/name of objects, sorted."""
    return sorted(f"{o['kind']}/{o['metadata']['name']}" for o in objects)
