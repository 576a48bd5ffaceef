"""Fetching a model from the hub: what ends a process that waits for nothing, and what doesn't."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gymtrain_trainer import fetch

_ERRORS = ("GatedRepoError", "HFValidationError", "RepositoryNotFoundError", "RevisionNotFoundError")
_STALL = 0.5


class _Ended(BaseException):
    """The process would have ended."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Codes that the process would have ended with."""
    codes: list[int] = []
    monkeypatch.setattr(fetch, "_REPORT_SECONDS", 0.02)
    monkeypatch.setattr(fetch, "_STALL_SECONDS", _STALL)
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setenv("GYMTRAIN_TERMINATION_LOG", str(tmp_path / "said"))
    return codes


def _fetch(folder: Path, monkeypatch: pytest.MonkeyPatch, download: Callable[[], None]) -> None:
    hub = SimpleNamespace(snapshot_download=lambda repo_id, **_: download())
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", SimpleNamespace(**dict.fromkeys(_ERRORS, KeyError)))
    folder.mkdir()
    fetch.fetch("org/name", None, folder, None)


def test_a_hub_that_sends_nothing_for_long_ends_the_process_with_a_reason(
    ends: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def download() -> None:
        until = time.monotonic() + 10
        while not ends:
            if time.monotonic() > until:
                pytest.fail("it waits without end")
            time.sleep(0.01)
        raise _Ended

    with pytest.raises(_Ended):
        _fetch(tmp_path / "model", monkeypatch, download)
    assert ends[0] == 1
    reason = "hf://org/name: nothing came for 0 s, after 0.0 MB"
    assert reason in capsys.readouterr().err
    assert reason in (tmp_path / "said").read_text()


def test_a_slow_download_goes_on(ends: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download() -> None:
        with (tmp_path / "model" / "weights.incomplete").open("wb", buffering=0) as file:
            for _ in range(10):
                file.write(b"x")
                time.sleep(_STALL / 4)

    _fetch(tmp_path / "model", monkeypatch, download)
    assert not ends


def test_reading_what_is_there_already_is_no_stall(
    ends: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library compares checksums of files that it finds without a note of its own."""
    found = tmp_path / "found"
    found.write_bytes(bytes(3 * 2**20))

    def download() -> None:
        for _ in range(10):
            found.read_bytes()
            time.sleep(_STALL / 4)

    _fetch(tmp_path / "model", monkeypatch, download)
    assert not ends


def test_the_watch_ends_with_the_download(ends: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fetch(tmp_path / "model", monkeypatch, lambda: None)
    time.sleep(2 * _STALL)
    assert not ends
