"""Indexing a JSONL file in one pass, with constant memory."""

import os
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gymtrain_gym.errors import DatasetError

MAX_ROW_BYTES = 64 * 2**20
MAX_PROBLEMS = 20
BUFFER_BYTES = 2**20


@dataclass
class FileIndex:
    """What one pass over a file found."""

    rows: int = 0
    agents: Counter[str] = field(default_factory=Counter)  # rows by agent
    problems: list[tuple[int, str]] = field(default_factory=list)  # (line, message), the first MAX_PROBLEMS
    problem_count: int = 0

    def add_problem(self, line: int, message: str) -> None:
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append((line, message))


def index(file: Path, offsets_file: Path, agent_of: Callable[[bytes, int], str]) -> FileIndex:
    """Writes the byte offsets of all rows and the end of the file to `offsets_file`; empty lines are no rows.

    A row reaches from its offset to the next one. The offsets appear complete or not at all.

    Args:
        file: the JSONL file.
        offsets_file: (rows + 1) little-endian uint64.
        agent_of: the agent of a row, from its bytes and its line; raises DatasetError for a row that can't be used.

    Raises:
        DatasetError: the file can't be read, or is no JSONL at all.
    """
    found = FileIndex()
    partial = offsets_file.with_name(offsets_file.name + ".partial")
    try:
        with file.open("rb", buffering=BUFFER_BYTES) as source, partial.open("wb", buffering=BUFFER_BYTES) as offsets:
            position = 0
            number = 0
            while line := source.readline(MAX_ROW_BYTES + 1):
                number += 1
                if number == 1:
                    _check_format(line)
                if len(line) > MAX_ROW_BYTES:
                    raise DatasetError(f"line {number} is longer than {MAX_ROW_BYTES >> 20} MiB: is this JSONL?")
                if not line.isspace():
                    offsets.write(struct.pack("<Q", position))
                    found.rows += 1
                    try:
                        found.agents[agent_of(line, number)] += 1
                    except DatasetError as error:
                        found.add_problem(number, str(error))
                position += len(line)
            offsets.write(struct.pack("<Q", position))
    except OSError as error:
        raise DatasetError(f"can't be read: {error.strerror or error}") from error
    if not found.rows:
        raise DatasetError("has no rows")
    os.replace(partial, offsets_file)
    return found


def _check_format(first: bytes) -> None:
    if first.startswith(b"\x1f\x8b"):
        raise DatasetError("is gzip-compressed: unpack it first")
    if first.startswith(b"PAR1"):
        raise DatasetError("is a Parquet file: convert it to JSONL, one JSON object per line")
    if first.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        raise DatasetError("is a JSON list: write it as JSONL, one JSON object per line")
