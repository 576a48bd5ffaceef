"""The tasks as examples/swe/tasks.yaml describes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dev.report import DevError
from dev.settings import NAME, REPOSITORY

FOLDER = REPOSITORY / "examples" / "swe"
TASKS = FOLDER / "tasks.yaml"
ROWS = FOLDER / "tasks.jsonl"


@dataclass(frozen=True, slots=True)
class Release:
    """A source distribution."""

    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Task:
    """One bug and its fix."""

    name: str
    package: str
    repo: str
    spec: str
    base: Release
    fix: Release
    source: tuple[str, ...]  # files of the fix
    tests: tuple[str, ...]  # files of the test suite that show it
    statement: str

    @property
    def instance_id(self) -> str:
        """As SWE-bench names instances; agents want it in lower case."""
        return f"{self.repo.replace('/', '__')}-{self.fix.version}".lower()

    @property
    def image(self) -> str:
        """What `make images` calls its image."""
        return f"{NAME}/swe-{self.name}:dev"


def read(path: Path = TASKS) -> list[Task]:
    """All tasks.

    Raises:
        DevError: an entry lacks a field or has one that is unknown.
    """
    return [_task(entry, path) for entry in yaml.safe_load(path.read_text())]


def select(tasks: list[Task], names: list[str]) -> list[Task]:
    """The named ones; all when none is named."""
    known = {task.name: task for task in tasks}
    for name in names:
        if name not in known:
            raise DevError(f"there is no task {name}", fix=f"one of: {', '.join(known)}")
    return [known[name] for name in names] or tasks


def dockerfile(task: Task) -> str:
    """The text of its Dockerfile."""
    return f"""\
# The task {task.name}. Written by `python -m dev.swe make`.
FROM {NAME}/swe-base:dev
USER root
RUN --mount=type=secret,id=ca,target=/run/secrets/ca,required=false \\
    --mount=type=secret,id=index,target=/run/secrets/index,required=false \\
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \\
    if [ -s /run/secrets/index ]; then PIP_INDEX_URL="$(cat /run/secrets/index)" && export PIP_INDEX_URL; fi; \\
    /opt/swe/task.sh /opt/miniconda3 /testbed {task.package}=={task.base.version} \\
      {task.base.sha256}
USER 65532:65532
"""


def _task(entry: dict[str, Any], path: Path) -> Task:
    try:
        base, fix = Release(**entry.pop("base")), Release(**entry.pop("fix"))
        source, tests = tuple(entry.pop("source")), tuple(entry.pop("tests"))
        return Task(**entry, base=base, fix=fix, source=source, tests=tests)
    except (KeyError, TypeError) as error:
        raise DevError(f"{path}: task {entry.get('name')}: {error}") from error
