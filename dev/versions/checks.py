"""Runs one check's tests in a release's environment, and reads what came out."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from dev.settings import REPOSITORY
from dev.versions.environment import Environments
from dev.versions.matrix import Check, Release
from dev.versions.trials import Outcome

_TEST_SECONDS = 900  # starting a server included
_CHECK_SECONDS = 2400.0
_END_SECONDS = 60.0  # in which the tests end their servers
_NOTE = 300  # characters


def run(environments: Environments, release: Release, check: Check) -> Outcome:
    """How the tests went. Their output and vLLM's are in the log folder."""
    if not check.tests:
        return Outcome(note=check.what)
    log = environments.logs / f"{release.vllm}-{check.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # Short, for vLLM's sockets are below it.
    folder = Path(tempfile.mkdtemp(prefix="gymtrain-"))
    report = folder / "report.xml"
    command: list[str | Path] = [
        environments.python(release),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
    ]
    command += [f"--timeout={_TEST_SECONDS}", f"--basetemp={folder / 'tests'}", *check.tests]
    variables = {
        **os.environ,
        # What vLLM finds out about model classes is the same in all checks.
        "VLLM_CACHE_ROOT": str(environments.scratch(release)),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    try:
        late = _finish(command, variables, log)
        for number, text in enumerate(sorted(folder.rglob("vllm.log"))):
            shutil.copyfile(text, log.with_name(f"{log.stem}-vllm-{number}.log"))
        return read(report, late)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _finish(command: list[str | Path], variables: dict[str, str], log: Path) -> str:
    """Returns when the tests have ended; says why if they were ended."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(_CHECK_SECONDS)
            return ""
        except subprocess.TimeoutExpired:
            return f"not done within {_CHECK_SECONDS:.0f} s"
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # pytest then ends the servers, which are in sessions of their own
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_SECONDS)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def read(report: Path, late: str = "") -> Outcome:
    """What pytest's JUnit report says; a failure where there is none."""
    try:
        suite = ElementTree.parse(report).getroot().find("testsuite")  # noqa: S314 - our own
    except (OSError, ElementTree.ParseError):
        suite = None
    if suite is None:
        return Outcome(failed=1, note=late or "pytest ended without a report: see the log")
    wrong = [
        case for case in suite.iter("testcase") if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = [case for case in suite.iter("testcase") if case.find("skipped") is not None]
    notes = [late] if late else []
    notes += [f"{case.get('name')}: {_message(case)}" for case in wrong] or [_message(case) for case in skipped]
    total = len(list(suite.iter("testcase")))
    return Outcome(
        passed=total - len(wrong) - len(skipped),
        failed=len(wrong) + bool(late),
        skipped=len(skipped),
        seconds=round(float(suite.get("time") or 0)),
        note=notes[0][:_NOTE] if notes else "",
    )


def _message(case: ElementTree.Element) -> str:
    found = next(part for kind in ("failure", "error", "skipped") if (part := case.find(kind)) is not None)
    return " ".join((found.get("message") or found.text or "").split())
