"""Rows of a dataset for mini_swe_agent_2, made of tasks.

Which tests a fix mends is found out by running them: SWE-bench's own script before and after it, read by its own
parser. After it twice, because the names of some tests hold the time of day.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from dev.report import DevError
from dev.swe import grading
from dev.swe.tasks import Task
from dev.swe.workspace import Workspace

MAX_KEPT = 100  # tests of a row that passed before: a sample, or the rows would not fit into a ConfigMap

type Row = dict[str, Any]


def make(task: Task, workspace: Workspace) -> Row:
    """The row of a task.

    Raises:
        DevError: the releases don't differ in the named files, or no test tells them apart.
    """
    with tempfile.TemporaryDirectory() as folder:
        fixed = shutil.copytree(workspace.checkout(task.package, task.fix), Path(folder, "fixed"))
        testbed = workspace.checkout(task.package, task.base)
        row: Row = {
            "instance_id": task.instance_id,
            "repo": task.repo,
            "version": task.spec,
            "base_commit": _git(testbed, "rev-parse", "HEAD").strip(),
            "environment_setup_commit": _git(testbed, "rev-parse", "HEAD").strip(),
            "image_name": task.image,
            "problem_statement": task.statement,
            "hints_text": "",
            "patch": _difference(task, testbed, fixed, task.source),
            "test_patch": _difference(task, testbed, fixed, task.tests),
            "FAIL_TO_PASS": [],
            "PASS_TO_PASS": [],
            "subset": "gymtrain",
            "split": "train",
            "responses_create_params": {"input": [], "temperature": 1.0, "top_p": 1.0},
        }
    before, after, again = (
        grading.statuses(row, grading.evaluate(row, workspace, patch)) for patch in ("", row["patch"], row["patch"])
    )
    passing = sorted(name for name in after if after[name] == again.get(name) == "PASSED" and _whole(name))
    mended = [name for name in passing if before.get(name) != "PASSED"]
    if not mended:
        raise DevError(f"task {task.name}: no test of {', '.join(task.tests)} fails before the fix and passes after it")
    kept = [name for name in passing if before.get(name) == "PASSED"]
    return row | {"FAIL_TO_PASS": mended, "PASS_TO_PASS": kept[:MAX_KEPT]}


def write(path: Path, rows: list[Row]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read(path: Path) -> list[Row]:
    """What `write` wrote."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _whole(name: str) -> bool:
    """False for the name of a test with a blank in it, of which SWE-bench's parser keeps the first word."""
    return name.endswith("]") or "[" not in name


def _difference(task: Task, testbed: Path, fixed: Path, files: tuple[str, ...]) -> str:
    """The fix's change of `files`, as a patch; the repository is left as it was."""
    for name in files:
        shutil.copy(fixed / name, testbed / name)
    patch = _git(testbed, "diff", "--no-color", "--full-index")
    _git(testbed, "checkout", "--quiet", "--", ".")
    if not patch:
        raise DevError(f"task {task.name}: {', '.join(files)} are the same in both releases")
    return patch


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout
