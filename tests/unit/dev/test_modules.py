import time
from pathlib import Path

import pytest

from dev.supply.modules import fetched_ahead
from dev.supply.toolchain import Go


@pytest.fixture
def go(tmp_path: Path) -> Go:
    """Notes what it was asked for, then takes its time."""
    program = tmp_path / "go"
    program.write_text('#!/bin/sh\necho "$PWD $*" >> "$NOTES"\nexec sleep "$SECONDS_EACH"\n')
    program.chmod(0o755)
    return Go(program, {"NOTES": str(tmp_path / "notes"), "SECONDS_EACH": "0"})


def _notes(folder: Path, count: int) -> list[str]:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        lines = (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []
        if len(lines) >= count:
            return lines
        time.sleep(0.02)
    raise AssertionError("the packages were not asked for")


def test_each_folder_is_asked_for_what_its_packages_need(go: Go, tmp_path: Path) -> None:
    folders = {tmp_path / name: [f"example.com/{name}"] for name in ("a", "b")}
    for folder in folders:
        folder.mkdir()
    with fetched_ahead(go, folders, tmp_path / "log"):
        lines = _notes(tmp_path, 2)
    assert lines == [f"{tmp_path}/{name} list -deps -f {{{{.ImportPath}}}} example.com/{name}" for name in ("a", "b")]


def test_what_still_runs_at_the_end_of_the_block_is_ended(go: Go, tmp_path: Path) -> None:
    go.env["SECONDS_EACH"] = "600"
    started = time.monotonic()
    with fetched_ahead(go, {tmp_path: ["a"], tmp_path.parent: ["b"]}, tmp_path / "log"):
        _notes(tmp_path, 1)
    assert time.monotonic() - started < 60
    assert len(_notes(tmp_path, 1)) == 1, "the second folder's turn never came"
