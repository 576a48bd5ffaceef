"""What was tried and how it went, kept in docs/recorded/versions.json: one trial by release, the latest one."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from dev import files
from dev.settings import REPOSITORY
from dev.versions.matrix import order

FILE = REPOSITORY / "docs" / "recorded" / "versions.json"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check.

    Attributes:
        passed: tests that passed.
        failed: tests that didn't.
        skipped: tests that were not run.
        seconds: for all of them.
        note: why one failed, or why none was run.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: int = 0
    note: str = ""

    def __str__(self) -> str:
        if self.failed:
            return f"{self.failed} of {self.passed + self.failed} failed"
        return f"{self.passed} passed" if self.passed else "not run"


@dataclass(frozen=True, slots=True)
class Trial:
    """One release."""

    vllm: str
    torch: str
    transformers: str
    machine: str
    date: str
    checks: dict[str, Outcome]


def load(file: Path = FILE) -> tuple[Trial, ...]:
    """All trials, oldest release first; none where there is no file."""
    if not file.exists():
        return ()
    found = [
        Trial(**(entry | {"checks": {name: Outcome(**outcome) for name, outcome in entry["checks"].items()}}))
        for entry in json.loads(file.read_text())
    ]
    return tuple(sorted(found, key=lambda trial: order(trial.vllm)))


def save(trial: Trial, file: Path = FILE) -> None:
    """Adds a trial, in the place of the release's earlier one."""
    others = [other for other in load(file) if other.vllm != trial.vllm]
    trials = sorted([*others, trial], key=lambda one: order(one.vllm))
    files.write(file, json.dumps([asdict(one) for one in trials], indent=1) + "\n")


def machine() -> str:
    """The kind of this machine."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"CPU ({found[1].strip() if found else 'unknown'}), {os.process_cpu_count()} cores"
