"""Messages cut as vLLM's receiver cuts them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gymtrain_trainer.weights.transports.nccl import packing  # noqa: E402
from gymtrain_trainer.weights.transports.nccl.packing import Packer, describe, messages  # noqa: E402

pytestmark = pytest.mark.torch


def tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "a": torch.randn(3, 5),
        "b": torch.randn(4, 4).t(),  # not contiguous
        "c": torch.tensor(2.5),
        "d": torch.arange(3, dtype=torch.int8),
        "e": torch.zeros(0, 3),
        "f": torch.randn(7),  # behind an odd number of bytes
    }


def sent(limit: int, dtype: str | None) -> list[Any]:
    packer = Packer(describe(iter(tensors().items()), dtype), torch.device("cpu"), limit)
    found: list[Any] = []
    packer.send(iter(tensors().items()), lambda message: found.append(message.clone()))
    assert sum(message.numel() for message in found) == packer.total_bytes
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", None])
@pytest.mark.parametrize("limit", [1, 40, 1 << 20])
def test_the_receiver_finds_every_tensor(limit: int, dtype: str | None) -> None:
    """By vLLM's rule: a message holds tensors until their sum is above the limit."""
    given, found = tensors(), sent(limit, dtype)
    for message, infos in zip(found, messages(describe(iter(given.items()), dtype), limit), strict=True):
        for part, info in zip(message.split([info.size for info in infos]), infos, strict=True):
            expected = given[info.name].to(getattr(torch, info.dtype))
            assert torch.equal(part.clone().view(expected.dtype).view(info.shape), expected)


def test_a_message_ends_after_the_tensor_that_brings_it_above_the_limit() -> None:
    infos = describe(iter(tensors().items()), None)
    assert [[info.name for info in message] for message in messages(infos, 100)] == [["a", "b"], ["c", "d", "e", "f"]]


def test_buffers_are_used_in_turn() -> None:
    packer = Packer(describe(iter(tensors().items()), None), torch.device("cpu"), 1)
    addresses: list[int] = []
    packer.send(iter(tensors().items()), lambda message: addresses.append(message.data_ptr()))
    assert len(set(addresses)) == 2


class FakeStream:
    """A stream of a GPU that isn't there: notes what waits for it, and what is queued in it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.device, self._log = name, torch.device("cpu"), log

    def wait_stream(self, other: "FakeStream") -> None:
        self._log.append(f"{self.name} waits for {other.name}")


def streamed(monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> list[str]:
    """What a send of two messages from two buffers queues in which stream, and what waits for what."""
    log: list[str] = []
    main, first, second = (FakeStream(name, log) for name in ("main", "first", "second"))
    current = [main]

    @contextmanager
    def stream(own: FakeStream) -> Iterator[None]:
        current.append(own)
        try:
            yield
        finally:
            current.pop()

    def given() -> Iterator[tuple[str, Any]]:
        for name, tensor in tensors().items():
            log.append(f"{name} read in {current[-1].name}")
            yield name, tensor

    def copy(*_: Any) -> None:
        log.append(f"packed in {current[-1].name}")

    def broadcast(_: Any) -> None:
        log.append(f"sent in {current[-1].name}")
        if fails:
            raise ValueError("NCCL")

    packer = Packer(describe(iter(tensors().items()), None), torch.device("cpu"), 100)
    packer.send(iter(tensors().items()), lambda _: None)
    monkeypatch.setattr(packer, "_streams", [first, second])
    monkeypatch.setattr("torch.cuda.current_stream", lambda _: current[-1])
    monkeypatch.setattr("torch.cuda.stream", stream)
    monkeypatch.setattr(packing, "_copy", copy)
    with pytest.raises(ValueError, match="NCCL") if fails else nullcontext():
        packer.send(given(), broadcast)
    return log


@pytest.mark.parametrize("fails", [False, True])
def test_each_buffer_has_a_stream_of_its_own_between_what_comes_before_and_after(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """What changes the weights next must wait for all of them, and so must what asks whether the sync is done."""
    log = [line for line in streamed(monkeypatch, fails=fails) if "read" not in line]
    in_turn = [
        [f"{own} waits for main", f"packed in {own}", f"main waits for {own}", f"sent in {own}"]
        for own in ("first", "second")
    ]
    assert log[:-2] == [line for lines in in_turn[: 1 if fails else 2] for line in lines]
    assert log[-2:] == ["main waits for first", "main waits for second"]


def test_tensors_are_read_in_the_stream_that_waits_for_those_before_to_be_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some of what ranks gather at once goes into the next message, and its memory is used again for what they gather
    next. Read in the buffers' streams, two ranks' Qwen3-8B arrived as other weights: a mean difference of 11."""
    log = streamed(monkeypatch)
    assert [line for line in log if "read" in line] == [f"{name} read in main" for name in "abcdef"]
    between = log[log.index("packed in first") : log.index("c read in main")]
    assert "main waits for first" in between, "what comes next may overwrite what is being packed"
