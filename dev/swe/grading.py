"""SWE-bench's own grading of a row, in a workspace instead of a container."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from dev.report import DevError
from dev.swe.workspace import Workspace


def evaluate(row: dict[str, Any], workspace: Workspace, patch: str) -> str:
    """Output of SWE-bench's evaluation script on the row's code with `patch`. The workspace has the row's code."""
    from swebench.harness.test_spec.test_spec import make_test_spec

    if patch:
        applied = workspace.run(f"git apply - <<'EOF_PATCH'\n{patch}\nEOF_PATCH")
        if applied.code:
            raise DevError(f"{row['instance_id']}: the patch doesn't apply: {applied.stderr}")
    done = workspace.run(make_test_spec(row).eval_script.replace("#!/bin/bash", ""))
    if patch:
        workspace.run("git checkout --quiet -- .")
    return done.output


def statuses(row: dict[str, Any], output: str) -> dict[str, str]:
    """Status by test, as SWE-bench reads the output.

    Raises:
        DevError: it reads none.
    """
    from swebench.harness.grading import get_logs_eval
    from swebench.harness.test_spec.test_spec import make_test_spec

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        log.write_text(output)
        found, _ = get_logs_eval(make_test_spec(row), str(log))
    if not found:
        raise DevError(f"{row['instance_id']}: SWE-bench finds no test in the output: {output[-3000:]}")
    return dict(found)


def resolved(row: dict[str, Any], output: str, patch: str) -> bool:
    """SWE-bench's verdict."""
    from swebench.harness.grading import get_eval_report
    from swebench.harness.test_spec.test_spec import make_test_spec

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        log.write_text(output)
        prediction = {"instance_id": row["instance_id"], "model_patch": patch}
        report = get_eval_report(make_test_spec(row), prediction, str(log), include_tests_status=True)
    return bool(report[row["instance_id"]]["resolved"])
