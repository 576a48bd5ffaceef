"""Fetching datasets to a volume: what ends a process that waits for nothing."""

import os
import threading
from pathlib import Path

import pytest

from gymtrain_api.spec import Data
from gymtrain_gym import fetch
from gymtrain_gym.datasets import remote

pytestmark = pytest.mark.gym


@pytest.mark.parametrize("hangs", ["open_remote", "look", "copy"])
def test_a_store_that_says_nothing_for_long_ends_the_process(
    hangs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    gone = threading.Event()

    def end(code: int) -> None:
        ended.append(code)
        gone.set()

    def hang(*_: object) -> None:
        assert gone.wait(10), "it waits without end"
        raise ConnectionError

    monkeypatch.setattr(fetch, "REPORT_SECONDS", 0.01)
    monkeypatch.setattr(fetch, "STALL_SECONDS", 0.1)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(remote, "open_remote", lambda *_: None)
    monkeypatch.setattr(remote, "look", lambda _: remote.Version("v", 1))
    monkeypatch.setattr(remote, hangs, hang)
    data = Data.model_validate({"train": [{"source": "s3://bucket/train.jsonl"}]})
    with pytest.raises(ConnectionError):
        fetch.fetch("train-0", data, tmp_path)
    assert ended[0] == 1
    assert "s3://bucket/train.jsonl: nothing came for" in capsys.readouterr().err
