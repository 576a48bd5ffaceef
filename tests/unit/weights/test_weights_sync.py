"""What TRL has of weight sync: its steps are numbered, timed, noted and interrupted."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymtrain_api.transports import TransportName
from gymtrain_trainer.activity import Activity, Doing
from gymtrain_trainer.progress import ProgressBoard
from gymtrain_trainer.stopping import StopSignal
from gymtrain_trainer.weights import (
    ChosenTransport,
    ParityCheck,
    ParityWatch,
    SyncNumberFile,
    SyncNumbers,
    SyncSettings,
    Transport,
    TransportRefusedError,
    WeightSync,
    WeightSyncError,
)
from gymtrain_trainer.weights.parity.check import Completion, ParityCompletion
from gymtrain_trainer.weights.transports.transport import Delivered


class Sending(Transport):
    """Notes what it is given; there are no pods."""

    name: TransportName = "HTTPFull"
    mends = False

    def __init__(self, activity: Activity, folder: Path) -> None:
        self.sent: list[list[str]] = []
        self.noted: list[int] = []
        self.refuses = False
        self.fails = False
        self.paused = False
        self._activity = activity
        self._folder = folder

    def pause(self) -> None:
        self.paused = self.pauses

    def resume(self) -> None:
        self.paused = False

    def prepare(self) -> None:
        if self.refuses:
            raise TransportRefusedError("no route")

    def send(self, number: int, tensors: Iterator[tuple[str, Any]], delivered: Callable[[Delivered], None]) -> None:
        self.noted.append(SyncNumberFile(self._folder, 1).last())
        before = self._activity.spent()[Doing.SYNC]
        while self._activity.spent()[Doing.SYNC] == before:  # time passes in it: a sync counts as one
            pass
        names = [name for name, _ in tensors]
        if self.fails:
            raise RuntimeError("the pods went")
        self.sent.append(names)
        delivered(Delivered())


class Checks(ParityWatch):
    """Notes what generation did when parity was checked."""

    def __init__(self, transport: Sending) -> None:
        super().__init__(ParityCheck([]))
        self.seen: list[bool] = []
        self._transport = transport

    def ask(self, *_: Any) -> None:
        self.seen.append(self._transport.paused)
        self._sampled = {"pod": [ParityCompletion(Completion((1,), (2,)), [-1.0])]}


class Parts:
    """Weight sync and what it is made of."""

    def __init__(self, folder: Path, start: int = 0, watch: Any = None) -> None:
        self.board = ProgressBoard()
        self.activity = Activity()
        self.numbering = SyncNumbers("run", 1, start)
        self.transport = Sending(self.activity, folder)
        self.checks = Checks(self.transport)
        self.stop = StopSignal()
        self.transfer = WeightSync(
            SyncSettings("run", 1, "no-such-host.invalid", "http://x"),
            lambda: ChosenTransport(self.transport, "it fits"),
            stop=self.stop,
            board=self.board,
            activity=self.activity,
            numbers=self.numbering,
            number_file=SyncNumberFile(folder, 1),
            parity=self.checks,
            watch=watch,
        )


type Make = Callable[..., Parts]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Parts] = []

    def one(start: int = 0, watch: Any = None) -> Parts:
        made.append(Parts(tmp_path, start, watch))
        return made[-1]

    yield one
    for parts in made:
        parts.transfer.destroy()


def stream() -> Iterator[tuple[str, Any]]:
    yield "weight", 1


def sync(made: Parts) -> None:
    made.transfer.send_weights(stream())
    if asked := made.transfer.to_compare():
        made.transfer.compare([[-1.0] * len(one.tokens) for one in asked])


def test_each_sync_is_noted_before_any_pod_hears_of_it(make: Make) -> None:
    made = make()
    sync(made)
    sync(made)
    assert [noted >= number for noted, number in zip(made.transport.noted, (1, 2), strict=True)] == [True, True]
    assert [made.numbering.label(version) for version in (1, 2)] == ["run:1:1", "run:1:2"]
    assert made.board.snapshot().weight_version == "run:1:2"


def test_a_process_that_takes_over_uses_no_number_of_the_one_before(make: Make, tmp_path: Path) -> None:
    first = make()
    first.transfer.send_weights(stream())
    start = SyncNumberFile(tmp_path, 1).last()
    second = make(start)
    second.transfer.send_weights(stream())
    assert second.numbering.model_version("run:1:1") is not None
    assert (second.numbering.model_version("run:1:1") or 0) <= 0
    assert second.numbering.model_version(f"run:1:{start + 1}") == 1


def test_a_failed_sync_is_no_version(make: Make) -> None:
    made = make()
    made.transport.fails = True
    with pytest.raises(RuntimeError, match="the pods went"):
        made.transfer.send_weights(stream())
    assert made.board.snapshot().weight_version is None


def test_the_stream_may_be_watched_on_its_way(make: Make) -> None:
    seen: list[tuple[int, str]] = []

    def watch(version: int, iterator: Iterator[tuple[str, Any]], dtype: str | None) -> Iterator[tuple[str, Any]]:
        for name, tensor in iterator:
            seen.append((version, name))
            yield name, tensor

    made = make(watch=watch)
    sync(made)
    sync(made)
    assert seen == [(1, "weight"), (2, "weight")]
    assert made.transport.sent == [["weight"], ["weight"]]


def test_the_choice_and_a_refusal_are_on_the_board(make: Make) -> None:
    made = make()
    made.transfer.init_weight_transfer()
    assert (made.board.snapshot().transport, made.board.snapshot().transport_reason) == ("HTTPFull", "it fits")
    made.transport.refuses = True
    with pytest.raises(TransportRefusedError):
        made.transfer.init_weight_transfer()
    assert made.board.snapshot().transport_reason == "no route"


def test_sigterm_ends_a_sync_without_an_error_and_the_stream_is_read_to_its_end(make: Make) -> None:
    made = make()
    sync(made)
    read: list[str] = []

    def interrupted() -> Iterator[tuple[str, Any]]:
        for name in ("first", "second", "third"):
            read.append(name)
            yield name, 1

    def send(number: int, tensors: Iterator[tuple[str, Any]], delivered: Callable[[Delivered], None]) -> None:
        next(tensors)
        made.stop.requested = True
        made.stop.check()

    made.transport.send = send  # type: ignore[method-assign]
    made.transfer.pause()
    made.transfer.send_weights(interrupted())
    made.transfer.resume()
    assert read == ["first", "second", "third"]
    assert made.board.snapshot().weight_version == "run:1:1"


def test_after_sigterm_no_sync_begins(make: Make) -> None:
    made = make()
    made.stop.requested = True
    made.transfer.pause()
    made.transfer.send_weights(stream())
    made.transfer.resume()
    assert made.transport.sent == []


@pytest.mark.parametrize("pauses", [True, False])
def test_for_parity_pods_are_asked_once_they_generate_again(make: Make, pauses: bool) -> None:
    made = make()
    made.transport.pauses = pauses
    made.transfer.pause()
    made.transfer.send_weights(stream())
    made.transfer.resume()
    assert made.checks.seen == [False]
    assert made.transfer.to_compare() == [Completion((1,), (2,))]


def test_after_a_sync_the_trainers_numbers_are_compared(make: Make) -> None:
    made = make()
    made.transfer.send_weights(stream())
    made.transfer.compare([[-1.01]])
    assert made.transfer.stats.last_parity == pytest.approx(0.01)
    made.transfer.send_weights(stream())
    assert made.transfer.to_compare() == [], "it is not due"


def test_a_trainer_that_leaves_the_comparison_out_gets_no_further_sync(make: Make) -> None:
    made = make()
    made.transfer.send_weights(stream())
    with pytest.raises(WeightSyncError, match="not compared"):
        made.transfer.send_weights(stream())


def test_weights_that_are_not_sent_are_not_compared(make: Make) -> None:
    made = make()
    made.transport.compares = False
    made.transfer.send_weights(stream())
    made.transfer.resume()
    assert made.checks.seen == []
    assert made.transfer.to_compare() == []
