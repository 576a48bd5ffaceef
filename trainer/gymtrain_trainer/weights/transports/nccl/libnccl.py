"""The few calls of libnccl that a broadcast to vLLM needs, on the library that torch brings.

vLLM's own wrapper lives in vLLM, which takes 15 s to import and is not in every trainer's image, and it has no abort:
without that, a vLLM worker that dies leaves this process inside the library forever. torch.distributed's groups can't
stand in: vLLM's workers join by a bare NCCL id.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

from gymtrain_trainer.weights.errors import TransportRefusedError, WeightSyncError

ID_BYTES = 128

_LIBRARY = "libnccl.so.2"
_SUCCESS, _IN_PROGRESS = 0, 7
_POLL_SECONDS = 0.0005
_UINT8, _FLOAT32, _SUM = 1, 7, 0


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * ID_BYTES),)


def load() -> ctypes.CDLL:
    """The library, declared.

    Raises:
        TransportRefusedError: torch came without it, as its CPU builds do.
    """
    import torch  # noqa: F401 - it loads the library that it was built with

    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise TransportRefusedError(f"NCCL: the trainer's torch has no {_LIBRARY}: {error}") from error
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    signatures: dict[str, list[Any]] = {
        "ncclGetUniqueId": [ctypes.POINTER(_UniqueId)],
        "ncclCommInitRank": [ctypes.POINTER(pointer), number, _UniqueId, number],
        "ncclAllReduce": [pointer, pointer, size, number, number, pointer, pointer],
        "ncclBroadcast": [pointer, pointer, size, number, number, pointer, pointer],
        "ncclCommGetAsyncError": [pointer, ctypes.POINTER(number)],
        "ncclCommAbort": [pointer],
    }
    for name, types in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, number
    library.ncclGetErrorString.argtypes, library.ncclGetErrorString.restype = [number], ctypes.c_char_p
    return library


def new_id(library: ctypes.CDLL) -> bytes:
    """The id of a communicator that is still to be made."""
    unique = _UniqueId()
    _check(library, library.ncclGetUniqueId(ctypes.byref(unique)), "making an id")
    return bytes(unique)


class Communicator:
    """Rank 0 of a group; the others are vLLM's workers. `abort` may be called from any thread, once or often."""

    def __init__(self, library: ctypes.CDLL, unique_id: bytes, world_size: int, device: int) -> None:
        """Blocks until every worker has joined: call it in a thread that may be left behind.

        Raises:
            WeightSyncError: NCCL refuses.
        """
        import torch

        self.device = torch.device("cuda", device)
        self._library = library
        self._comm = ctypes.c_void_p()
        self._lock = threading.Lock()
        self._aborted = ""
        with torch.cuda.device(device):
            unique = _UniqueId.from_buffer_copy(unique_id)
            code = library.ncclCommInitRank(ctypes.byref(self._comm), world_size, unique, 0)
            _check(library, code, f"joining {world_size - 1} vLLM workers")
            # vLLM's workers begin with this one, to find out whether the group works.
            one = torch.zeros(1, device=self.device)
            stream = torch.cuda.current_stream()
            code = library.ncclAllReduce(
                one.data_ptr(), one.data_ptr(), 1, _FLOAT32, _SUM, self._comm, stream.cuda_stream
            )
            _check(library, code, "the first exchange")
            stream.synchronize()

    def broadcast(self, tensor: Any) -> None:
        """Queues the bytes of a contiguous uint8 tensor on the current stream.

        Raises:
            WeightSyncError: NCCL refuses, or the group was aborted.
        """
        import torch

        self.check()
        address, stream = tensor.data_ptr(), torch.cuda.current_stream().cuda_stream
        code = self._library.ncclBroadcast(address, address, tensor.numel(), _UINT8, 0, self._comm, stream)
        self.check()
        _check(self._library, code, "a broadcast")

    def wait(self) -> None:
        """Returns once everything that was queued is done.

        Raises:
            WeightSyncError: it failed, or the group was aborted meanwhile.
        """
        import torch

        done = torch.cuda.Event()
        done.record()
        while not done.query():
            self.check()
            time.sleep(_POLL_SECONDS)
        self.check()

    def check(self) -> None:
        """Notices errors that came up after a call returned.

        Raises:
            WeightSyncError: there is one, or the group was aborted.
        """
        with self._lock:
            if self._aborted:
                raise WeightSyncError(f"NCCL: {self._aborted}")
            code = ctypes.c_int()
            self._library.ncclCommGetAsyncError(self._comm, ctypes.byref(code))
        if code.value != _IN_PROGRESS:
            _check(self._library, code.value, "a broadcast under way")

    def abort(self, reason: str) -> None:
        """Ends the group and every call and kernel of it that still runs in this process."""
        with self._lock:
            if not self._aborted:
                self._aborted = reason
                self._library.ncclCommAbort(self._comm)


def _check(library: ctypes.CDLL, code: int, what: str) -> None:
    if code != _SUCCESS:
        raise WeightSyncError(f"NCCL, {what}: {library.ncclGetErrorString(code).decode()}")
