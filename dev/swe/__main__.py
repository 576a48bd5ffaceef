"""Makes and checks the tasks of examples/swe. Runs in the environment of the image gym-swe, with SWE-bench's harness:

uv run --extra gym --extra gym-swe --group dev python -m dev.swe make           tasks.jsonl and the Dockerfiles
uv run --extra gym --extra gym-swe --group dev python -m dev.swe check [NAME…]  gold patch: resolved; empty patch: not
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from dev.report import DevError, say
from dev.swe import grading, rows, tasks
from dev.swe.workspace import Workspace


def main() -> int:
    """Exit code 0 where everything is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m dev.swe", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["make", "check"])
    parser.add_argument("names", nargs="*", help="of tasks; all when none is named")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="gymtrain-swe-") as folder:
            workspace = Workspace(Path(folder, "image"))
            if options.what == "make":
                _make(workspace)
                return 0
            return _check(workspace, tasks.select(tasks.read(), options.names))
    except DevError as error:
        print(error.render(), file=sys.stderr)
        return 1


def _make(workspace: Workspace) -> None:
    made = []
    for task in tasks.read():
        row = rows.make(task, workspace)
        say(f"{task.name}: {len(row['FAIL_TO_PASS'])} tests fail before the fix, {len(row['PASS_TO_PASS'])} pass")
        made.append(row)
        folder = tasks.FOLDER / task.name
        folder.mkdir(exist_ok=True)
        (folder / "Dockerfile").write_text(tasks.dockerfile(task))
    rows.write(tasks.ROWS, made)


def _check(workspace: Workspace, chosen: list[tasks.Task]) -> int:
    by_id = {row["instance_id"]: row for row in rows.read(tasks.ROWS)}
    wrong = 0
    for task in chosen:
        started, row = time.monotonic(), by_id[task.instance_id]
        workspace.checkout(task.package, task.base)
        verdicts = [
            grading.resolved(row, grading.evaluate(row, workspace, patch), patch) for patch in (row["patch"], "")
        ]
        fine = verdicts == [True, False]
        wrong += not fine
        say(
            f"{task.name}: gold patch {'resolved' if verdicts[0] else 'NOT RESOLVED'}, "
            f"empty patch {'RESOLVED' if verdicts[1] else 'not resolved'}, {time.monotonic() - started:.0f} s"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
