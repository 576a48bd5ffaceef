"""Packs a stream of tensors into few large messages, cut where vLLM's receiver cuts them.

The receiver knows names, types and shapes beforehand: a message ends after the tensor that brings it above the agreed
size. Casting and packing are one copy on the device. On a GPU each buffer has a stream of its own, so that a message is
packed while the one before is on its way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gymtrain_trainer.internals import copy_all
from gymtrain_trainer.weights.errors import WeightSyncError

if TYPE_CHECKING:
    import torch

MESSAGE_BYTES = 512 << 20  # above this a message is closed; the receiver needs two of them free on the GPU
BUFFERS = 2


@dataclass(frozen=True)
class TensorInfo:
    """What the receiver is told of one tensor."""

    name: str
    dtype: str  # such as bfloat16
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        import torch

        itemsize: int = getattr(torch, self.dtype).itemsize
        return math.prod(self.shape) * itemsize


def describe(tensors: Iterator[tuple[str, torch.Tensor]], dtype: str | None) -> list[TensorInfo]:
    """All tensors, floating-point ones as `dtype`; nothing is gathered."""
    found = []
    for name, tensor in tensors:
        kind = dtype if dtype and tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
        found.append(TensorInfo(name, kind, tuple(tensor.shape)))
    return found


def messages(tensors: Sequence[TensorInfo], limit: int = MESSAGE_BYTES) -> Iterator[list[TensorInfo]]:
    """The tensors of each message."""
    message: list[TensorInfo] = []
    size = 0
    for tensor in tensors:
        message.append(tensor)
        size += tensor.size
        if size > limit:
            yield message
            message, size = [], 0
    if message:
        yield message


type SendMessage = Callable[[torch.Tensor], None]  # sends a message, which may be read later, in the stream's order


class Packer:
    """Sends streams of one model. The buffers of `send`, and the places of the tensors in them, are kept from sync to
    sync; a `copy` has its own."""

    def __init__(self, tensors: Sequence[TensorInfo], device: Any, limit: int = MESSAGE_BYTES) -> None:
        self.tensors = tensors
        self.total_bytes = sum(tensor.size for tensor in tensors)
        self._device = device
        self._messages = [(message, sum(tensor.size for tensor in message)) for message in messages(tensors, limit)]
        self._buffers: list[torch.Tensor] = []
        self._streams: list[torch.cuda.Stream] = []  # of the buffers, on a GPU
        self._places: list[list[torch.Tensor]] = []  # of the tensors of each message

    def send(self, stream: Iterator[tuple[str, torch.Tensor]], broadcast: SendMessage) -> None:
        """Hands each message to `broadcast` as soon as it is packed, in the stream that it is packed in. What is queued
        in the current stream later comes after all of them.

        Raises:
            WeightSyncError: the stream is not the described one.
        """
        if not self._buffers:
            self._make_buffers()
        try:
            for number, (message, size) in enumerate(self._messages):
                turn = number % len(self._buffers)
                self._pack(message, self._places[number], turn, stream)
                with self._queued(turn):
                    broadcast(self._buffers[turn][:size])
        finally:
            for own in self._streams:
                _current(own).wait_stream(own)
        _check_end(stream)

    def _pack(
        self,
        message: Sequence[TensorInfo],
        places: Sequence[torch.Tensor],
        turn: int,
        stream: Iterator[tuple[str, torch.Tensor]],
    ) -> None:
        # Read in the current stream, never in a buffer's: of what the ranks of a sharded model gather at once, some may
        # go into the next message, and its memory is used again for what they gather next.
        values = _values(message, stream)
        with self._beside(turn):
            _copy(message, places, values)

    @contextmanager
    def _beside(self, turn: int) -> Iterator[None]:
        """What is queued within comes after what the current stream has, and before what it gets later."""
        if self._streams:
            self._streams[turn].wait_stream(_current(self._streams[turn]))
        with self._queued(turn):
            yield
        if self._streams:
            _current(self._streams[turn]).wait_stream(self._streams[turn])

    def _queued(self, turn: int) -> AbstractContextManager[object]:
        import torch

        return torch.cuda.stream(self._streams[turn]) if self._streams else nullcontext()

    def room(self) -> list[torch.Tensor]:
        """Memory for a `copy`: one buffer for each message.

        Raises:
            torch.OutOfMemoryError: there is none.
        """
        import torch

        return [torch.empty(size, dtype=torch.uint8, device=self._device) for _, size in self._messages]

    def copy(self, stream: Iterator[tuple[str, torch.Tensor]], room: Sequence[torch.Tensor]) -> None:
        """Packs all messages into `room`, in the order of the device's stream: the tensors may change after it.

        Raises:
            WeightSyncError: the stream is not the described one.
        """
        for (message, _), buffer in zip(self._messages, room, strict=True):
            _copy(message, _places(buffer, message), _values(message, stream))
        _check_end(stream)

    def _make_buffers(self) -> None:
        import torch

        largest = max((size for _, size in self._messages), default=0)
        count = min(BUFFERS, len(self._messages))
        self._buffers = [torch.empty(largest, dtype=torch.uint8, device=self._device) for _ in range(count)]
        self._places = [
            _places(self._buffers[number % count], message) for number, (message, _) in enumerate(self._messages)
        ]
        if torch.device(self._device).type == "cuda":
            self._streams = [torch.cuda.Stream(self._device) for _ in range(count)]


def _current(beside: torch.cuda.Stream) -> torch.cuda.Stream:
    import torch

    return torch.cuda.current_stream(beside.device)


def _values(message: Sequence[TensorInfo], stream: Iterator[tuple[str, torch.Tensor]]) -> list[torch.Tensor]:
    """The tensors of a message; raises WeightSyncError where the stream has others."""
    values = []
    for info in message:
        name, tensor = next(stream, ("nothing", None))
        if tensor is None or name != info.name or tuple(tensor.shape) != info.shape:
            raise WeightSyncError(f"the model gave {name} where {info.name} {list(info.shape)} was announced")
        values.append(tensor.detach())
    return values


def _check_end(stream: Iterator[tuple[str, torch.Tensor]]) -> None:
    for name, _ in stream:
        raise WeightSyncError(f"the model gave {name}, which was not announced")


def _places(buffer: torch.Tensor, message: Sequence[TensorInfo]) -> list[torch.Tensor]:
    """Where the tensors of a message go."""
    places, offset = [], 0
    for info in message:
        places.append(_place(buffer[offset : offset + info.size], info))
        offset += info.size
    return places


def _place(memory: torch.Tensor, info: TensorInfo) -> torch.Tensor:
    """Where a tensor goes: a view of its own type, or of bytes behind a tensor of a smaller type."""
    import torch

    dtype: torch.dtype = getattr(torch, info.dtype)
    aligned = memory.storage_offset() % dtype.itemsize == 0 and memory.numel() > 0
    return memory.view(dtype).view(info.shape) if aligned else memory


def _copy(message: Sequence[TensorInfo], places: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Casts and copies all of them, in one call where they lie well."""
    import torch

    with torch.no_grad():
        if all(place.shape == value.shape for place, value in zip(places, values, strict=True)):
            copy_all(places, values)
            return
        for info, place, value in zip(message, places, values, strict=True):
            if place.shape == value.shape:
                place.copy_(value)
            elif place.numel():
                place.copy_(value.to(getattr(torch, info.dtype)).contiguous().reshape(-1).view(torch.uint8))
