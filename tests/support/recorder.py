"""Everything that the API server told about the runs of a namespace, from a watch."""

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any, Self

from tests.support.apiserver import ApiServer, binary

type Object = dict[str, Any]


class Recorder:
    """A watch of the runs in one namespace; use as a context manager, and read `statuses` at any time."""

    def __init__(self, server: ApiServer, namespace: str, file: Path) -> None:
        path = f"/apis/gymtrain.dev/v1alpha1/namespaces/{namespace}/gymtrainingruns?watch=1"
        self._command = [binary("kubectl"), "--kubeconfig", str(server.kubeconfig), "get", "--raw", path]
        self._file = file

    def __enter__(self) -> Self:
        with self._file.open("wb") as output:
            self._process = subprocess.Popen(self._command, stdout=output)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)

    def statuses(self) -> dict[str, list[Object]]:
        """Every status that was written, oldest first, by run."""
        found: dict[str, list[Object]] = {}
        for line in self._file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # the last line may still be on its way
                run = json.loads(line)["object"]
                found.setdefault(run["metadata"]["name"], []).append(run.get("status") or {})
        return found


def flaps(statuses: list[Object]) -> list[str]:
    """Conditions that went back to what they had already left: two writers, or one that forgets."""
    found = []
    history: dict[str, list[tuple[str, str]]] = {}
    for status in statuses:
        for condition in status.get("conditions", []):
            seen = history.setdefault(condition["type"], [])
            now = (condition["status"], condition["reason"])
            if seen and seen[-1] == now:
                continue
            if now in seen:
                found.append(f"{condition['type']}: {' -> '.join('/'.join(value) for value in [*seen, now])}")
            seen.append(now)
    return found


def falls(statuses: list[Object], *path: str) -> list[tuple[int, int]]:
    """Where a number of the status got smaller, or vanished after it was there."""
    values = []
    for status in statuses:
        value: Any = status
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        values.append(-1 if value is None else int(value))
    return [(a, b) for a, b in itertools.pairwise(values) if b < a]
