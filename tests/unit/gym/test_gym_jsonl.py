"""Indexing JSONL files."""

import json
import struct
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from gymtrain_gym.datasets import preparation
from gymtrain_gym.errors import DatasetError

pytestmark = pytest.mark.gym


def index(file: Path, content: bytes) -> tuple[preparation.FileIndex, list[bytes]]:
    """The index, and the rows as a reader of the offsets sees them."""
    file.write_bytes(content)
    offsets_file = file.with_suffix(".offsets")
    found = preparation.index_rows(file, offsets_file, lambda line, number: "agent")
    raw = offsets_file.read_bytes()
    offsets = struct.unpack(f"<{len(raw) // 8}Q", raw)
    return found, [content[a:b] for a, b in pairwise(offsets)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_offsets_cut_the_file_into_rows(file: Path) -> None:
    assert index(file, b'{"a":1}\n{"b":22}\n')[1] == [b'{"a":1}\n', b'{"b":22}\n']


def test_last_line_needs_no_newline(file: Path) -> None:
    assert index(file, b"1\n22")[1] == [b"1\n", b"22"]


def test_empty_lines_are_no_rows(file: Path) -> None:
    found, rows = index(file, b"\n1\n\n \n2\n\n")
    assert found.rows == 2
    assert [row.strip() for row in rows] == [b"1", b"2"]


def test_byte_order_mark_is_part_of_no_row(file: Path) -> None:
    found, rows = index(file, b'\xef\xbb\xbf{"a":1}\n{"b":22}\n')
    assert rows == [b'{"a":1}\n', b'{"b":22}\n']
    assert found.rows == 2


def test_byte_order_mark_alone_is_no_row(file: Path) -> None:
    assert index(file, b"\xef\xbb\xbf\r\n1\r\n")[1] == [b"1\r\n"]


def test_lines_may_end_as_on_windows(file: Path) -> None:
    found, rows = index(file, b'{"a":1}\r\n\r\n{"b":22}\r\n')
    assert found.rows == 2
    assert [json.loads(row) for row in rows] == [{"a": 1}, {"b": 22}]


def test_rows_are_counted_by_agent(file: Path) -> None:
    assert index(file, b"1\n2\n")[0].agents == {"agent": 2}


def test_problems_carry_line_numbers_and_are_limited(file: Path) -> None:
    def refuse(line: bytes, number: int) -> str:
        raise DatasetError("no")

    file.write_bytes(b"\n" + b"x\n" * 100)
    found = preparation.index_rows(file, file.with_suffix(".offsets"), refuse)
    assert found.problems[0] == (2, "no")
    assert len(found.problems) == preparation.MAX_PROBLEMS
    assert found.problem_count == 100


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no rows"),
        (b"\n \n", "has no rows"),
        (b"[\n{}]", "is a JSON list"),
        (b"\x1f\x8b\x08", "is gzip-compressed"),
        (b"PAR1xx", "is a Parquet file"),
        (b"\xef\xbb\xbf[\n{}]", "is a JSON list"),
        ('{"a":1}\n'.encode("utf-16"), "is UTF-16"),
        ('{"a":1}\n'.encode("utf-16-le"), "is UTF-16"),
    ],
)
def test_file_that_is_no_jsonl_is_named(file: Path, content: bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        index(file, content)


def test_endless_line_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "MAX_ROW_BYTES", 100)
    with pytest.raises(DatasetError, match="line 2 is longer"):
        index(file, b"1\n" + b"x" * 200)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="can't be read: No such file"):
        preparation.index_rows(tmp_path / "none", tmp_path / "offsets", lambda line, number: "agent")


def test_offsets_appear_only_when_complete(file: Path) -> None:
    file.write_bytes(b"\n")
    with pytest.raises(DatasetError):
        preparation.index_rows(file, file.with_suffix(".offsets"), lambda line, number: "agent")
    assert not file.with_suffix(".offsets").exists()


def test_memory_does_not_grow_with_the_file(file: Path) -> None:
    with file.open("wb") as output:
        for number in range(100_000):
            output.write(b'{"responses_create_params":{"input":"%0500d"}}\n' % number)
    tracemalloc.start()
    found = preparation.index_rows(file, file.with_suffix(".offsets"), lambda line, number: "agent")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.rows == 100_000
    assert file.stat().st_size > 50_000_000
    assert peak < 4 * 2**20
