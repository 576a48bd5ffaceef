"""The tests that run in the image trainer-tests import nothing that it lacks."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = [ROOT / "tests/unit" / name for name in ("trainer", "weights")]
_NOT_THERE = ("kopf", "kubernetes", "lightkube")
_IMPORTING = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({_NOT_THERE!r}))  # to import one of these is an ImportError
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_what_the_trainers_tests_share_needs_no_client_of_a_cluster() -> None:
    texts = [file.read_text() for folder in FOLDERS for file in folder.rglob("*.py")]
    shared = {name for text in texts for name in re.findall(r"^from (tests\.support\.\w+) import", text, re.MULTILINE)}
    assert shared
    search_path = os.pathsep.join([".", *sys.path])
    command = [sys.executable, "-c", _IMPORTING, *sorted(shared)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": search_path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
