"""A cluster for tests of the command line: objects in memory, and commands that run on this machine."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gymtrain_client import run_folder
from gymtrain_client.cluster import LogOptions, Object
from gymtrain_client.errors import RunNotFoundError

type Damage = Callable[[bytes], bytes]


class Command:
    """A process, as the official client's WSClient shows one that runs in a pod."""

    def __init__(self, command: Sequence[str], damage: Damage, damage_said: Damage) -> None:
        words = command[command.index("python3") + 1 :]
        done = subprocess.run([sys.executable, *words], capture_output=True, check=False, timeout=60)
        self.returncode = done.returncode
        self._out, self._err = damage(done.stdout), damage_said(done.stderr)
        self.closed = False

    def is_open(self) -> bool:
        """Whether more may come."""
        return bool(self._out or self._err)

    def update(self, timeout: float) -> None:
        """All is there."""

    def read_stdout(self, timeout: float) -> bytes:
        """A part of it."""
        data, self._out = self._out[:1000], self._out[1000:]
        return data

    def read_stderr(self, timeout: float) -> bytes:
        """All of it."""
        data, self._err = self._err, b""
        return data

    def close(self) -> None:
        """Nobody reads any more."""
        self.closed = True


class FakeCluster:
    """What commands need of `Cluster`."""

    namespace = "lab"

    def __init__(self, volume: Path | None = None) -> None:
        self.runs: dict[str, Object] = {}
        self.found_pods: list[Object] = []
        self.made_pods: list[Object] = []
        self.deleted_pods: list[str] = []
        self.created: list[Object] = []
        self.dry: list[Object] = []
        self.deleted: list[str] = []
        self.logs: dict[tuple[str, str], list[str]] = {}
        self.damage: Damage = lambda data: data
        self.damage_said: Damage = lambda data: data
        self.commands: list[list[str]] = []
        self.instead: list[str] = []  # of each command
        self.on_read: Callable[[str], None] = lambda name: None
        self.volume = volume or Path()

    def run(self, name: str) -> Object:
        """A run."""
        self.on_read(name)
        if name not in self.runs:
            raise RunNotFoundError(f"no GymTrainingRun {name!r}")
        return self.runs[name]

    def create_run(self, run: Object, *, dry_run: bool = False) -> Object:
        """Creates it."""
        if dry_run:
            self.dry.append(run)
        else:
            self.created.append(run)
            self.runs[run["metadata"]["name"]] = run
        return run

    def delete_run(self, name: str) -> None:
        """Deletes it."""
        self.deleted.append(name)

    def pods(self, selector: Mapping[str, str]) -> list[Object]:
        """Those with the labels."""
        return [pod for pod in self.found_pods if selector.items() <= pod["metadata"]["labels"].items()]

    def create_pod(self, pod: Object) -> Object:
        """Creates it; it runs at once."""
        self.made_pods.append(pod)
        return pod

    def pod(self, name: str) -> Object:
        """A pod that was made."""
        return {"status": {"phase": "Running"}}

    def delete_pod(self, name: str) -> None:
        """Deletes it."""
        self.deleted_pods.append(name)

    def log(self, pod: str, container: str, options: LogOptions | None = None) -> Iterator[str]:
        """The lines that a test put there."""
        yield from self.logs.get((pod, container), [])

    def exec(self, pod: str, container: str, command: Sequence[str], *, stdin: bool = False) -> Any:
        """On the folder that stands for the volume."""
        self.commands.append(list(command))
        words = [str(self.volume) if part == run_folder.FOLDER else part for part in self.instead or command]
        return Command(words, self.damage, self.damage_said)


def pod(name: str, role: str, phase: str = "Running", **labels: str) -> Object:
    """A pod of the run `r`."""
    marks = {
        "app.kubernetes.io/managed-by": "gymtrain",
        "gymtrain.dev/run": "r",
        "gymtrain.dev/role": role,
        **{key.replace("__", "/"): value for key, value in labels.items()},
    }
    return {
        "metadata": {"name": name, "labels": marks},
        "spec": {"containers": [{"name": role}]},
        "status": {"phase": phase},
    }
