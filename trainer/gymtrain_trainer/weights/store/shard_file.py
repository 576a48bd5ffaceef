"""One file of a staged version, written and hashed in parts that threads share out among themselves."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from blake3 import blake3

from gymtrain_api.manifest import WeightPart

_CHUNK = 1 << 20  # bytes: written, then hashed while they are in the processor's cache


class ShardFile:
    """A file of known size."""

    def __init__(self, path: Path, content: Sequence[memoryview]) -> None:
        """Makes the file, empty.

        Args:
            path: of the file.
            content: its bytes, in order.

        Raises:
            OSError: the disk is full or not writable.
        """
        self._path = path
        self._content = content
        self._ends = list(accumulate(len(piece) for piece in content))
        self.size = self._ends[-1]
        with path.open("wb") as file:
            file.truncate(self.size)

    def write(self, offset: int, length: int) -> WeightPart:
        """Writes and hashes one range. Hashing and file writes release Python's lock.

        Raises:
            OSError: the disk is full or not writable.
        """
        digest, at = blake3(), offset
        with self._path.open("r+b", buffering=0) as file:
            for chunk in self._chunks(offset, offset + length):
                written = 0
                while written < len(chunk):
                    written += os.pwrite(file.fileno(), chunk[written:], at + written)
                digest.update(chunk)
                at += len(chunk)
        return WeightPart(name=self._path.name, size=self.size, offset=offset, bytes=length, blake3=digest.hexdigest())

    def _chunks(self, begin: int, end: int) -> Iterator[memoryview]:
        while begin < end:
            number = bisect_right(self._ends, begin)
            piece = self._content[number]
            start = begin - (self._ends[number] - len(piece))
            chunk = piece[start : start + min(_CHUNK, end - begin)]
            yield chunk
            begin += len(chunk)
