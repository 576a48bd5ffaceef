"""What stands between TRL and the weight transport."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymtrain_trainer.activity import Activity, Doing
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.weights import TransportRefusedError
from gymtrain_trainer.weights.sync import WatchedTransfer
from gymtrain_trainer.weights.version_numbers import SyncNumberFile, SyncNumbers


class Transport:
    """Numbers its syncs as the real ones do."""

    def __init__(self, start: int, activity: Activity, folder: Path) -> None:
        self.number = start
        self.sent: list[list[str]] = []
        self.noted: list[int] = []
        self.refuses = False
        self.fails = False
        self._activity = activity
        self._folder = folder

    @property
    def current_version(self) -> str | None:
        return f"run:1:{self.number}" if self.sent else None

    def init_weight_transfer(self) -> None:
        if self.refuses:
            raise TransportRefusedError("no route")

    def pause(self) -> None:
        """Nobody to pause."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        self.noted.append(SyncNumberFile(self._folder, 1).last())
        before = self._activity.spent()[Doing.SYNC]
        while self._activity.spent()[Doing.SYNC] == before:  # time passes in it: a sync counts as one
            pass
        names = [name for name, _ in iterator]
        if self.fails:
            raise RuntimeError("the pods went")
        self.number += 1
        self.sent.append(names)

    def resume(self) -> None:
        """Nobody to resume."""

    def destroy(self) -> None:
        """Nothing to free."""


class Parts:
    """A transfer and what it is made of."""

    def __init__(self, folder: Path, start: int = 0, watch: Any = None) -> None:
        self.board = ProgressBoard()
        self.activity = Activity()
        self.numbering = SyncNumbers("run", 1, start)
        self.transport = Transport(start, self.activity, folder)
        self.stop = StopSignal()
        self.transfer = WatchedTransfer(
            self.transport,
            lambda: ("HTTPFull", "it fits"),
            stop=self.stop,
            board=self.board,
            activity=self.activity,
            numbering=self.numbering,
            numbers=SyncNumberFile(folder, 1),
            watch=watch,
        )


def stream() -> Iterator[tuple[str, Any]]:
    yield "weight", 1


def test_each_sync_is_noted_before_any_pod_hears_of_it(tmp_path: Path) -> None:
    made = Parts(tmp_path)
    made.transfer.send_weights(stream())
    made.transfer.send_weights(stream())
    assert [noted >= number for noted, number in zip(made.transport.noted, (1, 2), strict=True)] == [True, True]
    assert [made.numbering.label(version) for version in (1, 2)] == ["run:1:1", "run:1:2"]
    assert made.board.snapshot().weight_version == "run:1:2"


def test_a_process_that_takes_over_uses_no_number_of_the_one_before(tmp_path: Path) -> None:
    first = Parts(tmp_path)
    first.transfer.send_weights(stream())
    start = SyncNumberFile(tmp_path, 1).last()
    second = Parts(tmp_path, start)
    second.transfer.send_weights(stream())
    assert second.numbering.model_version("run:1:1") is not None
    assert (second.numbering.model_version("run:1:1") or 0) <= 0
    assert second.numbering.model_version(f"run:1:{start + 1}") == 1


def test_a_failed_sync_is_no_version(tmp_path: Path) -> None:
    made = Parts(tmp_path)
    made.transport.fails = True
    with pytest.raises(RuntimeError, match="the pods went"):
        made.transfer.send_weights(stream())
    assert made.board.snapshot().weight_version is None


def test_the_stream_may_be_watched_on_its_way(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []

    def watch(version: int, iterator: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, tensor in iterator:
            seen.append((version, name))
            yield name, tensor

    made = Parts(tmp_path, watch=watch)
    made.transfer.send_weights(stream())
    made.transfer.send_weights(stream())
    assert seen == [(1, "weight"), (2, "weight")]
    assert made.transport.sent == [["weight"], ["weight"]]


def test_the_choice_and_a_refusal_are_on_the_board(tmp_path: Path) -> None:
    made = Parts(tmp_path)
    made.transfer.init_weight_transfer()
    assert (made.board.snapshot().transport, made.board.snapshot().transport_reason) == ("HTTPFull", "it fits")
    made.transport.refuses = True
    with pytest.raises(TransportRefusedError):
        made.transfer.init_weight_transfer()
    assert made.board.snapshot().transport_reason == "no route"


def test_sigterm_ends_a_sync_without_an_error_and_the_stream_is_read_to_its_end(tmp_path: Path) -> None:
    made = Parts(tmp_path)
    made.transfer.send_weights(stream())
    read: list[str] = []

    def interrupted() -> Iterator[tuple[str, Any]]:
        for name in ("first", "second", "third"):
            read.append(name)
            yield name, 1

    def send(iterator: Iterator[tuple[str, Any]]) -> None:
        next(iterator)
        made.stop.requested = True
        made.stop.check()

    made.transport.send_weights = send  # type: ignore[method-assign]
    made.transfer.pause()
    made.transfer.send_weights(interrupted())
    made.transfer.resume()
    assert read == ["first", "second", "third"]
    assert made.board.snapshot().weight_version == "run:1:1"


def test_after_sigterm_no_sync_begins(tmp_path: Path) -> None:
    made = Parts(tmp_path)
    made.stop.requested = True
    made.transfer.pause()
    made.transfer.send_weights(stream())
    made.transfer.resume()
    assert made.transport.sent == []
