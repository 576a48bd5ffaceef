"""Machine code of other GPUs is emptied in a library; what is kept, and all else of the file, stays as it was."""

import runpy
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "images/runtime/keep_architectures.py"))
keep: Callable[[Path, set[int]], tuple[int, int]] = SCRIPT["keep"]
PTX, MACHINE_CODE = 1, 2
HEADER = 64


def _entry(kind: int, architecture: int, payload: bytes) -> bytes:
    head = struct.pack("<HHIQ", kind, 0, HEADER, len(payload)).ljust(28, b"\0") + struct.pack("<I", architecture)
    return head.ljust(HEADER, b"\0") + payload


def _fat_binary(*entries: bytes) -> bytes:
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


def _library(path: Path, *binaries: bytes) -> Path:
    """An ELF file with the fat binaries in their section, and another section that looks like one."""
    names = b"\0.nv_fatbin\0.rodata\0.shstrtab\0"
    code, other = b"\0" * 24 + b"".join(binaries), _fat_binary(_entry(MACHINE_CODE, 80, b"not code"))
    parts, at = [], 64
    sections = [(0, 0, 0)]
    for name, content in ((1, code), (12, other), (20, names)):
        sections.append((name, at, len(content)))
        parts.append(content)
        at += len(content)
    table = b"".join(struct.pack("<IIQQQQIIQQ", n, 1, 0, 0, o, size, 0, 0, 0, 0) for n, o, size in sections)
    header = b"\x7fELF\x02\x01".ljust(0x28, b"\0") + struct.pack("<Q", at)
    header = header.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, len(sections), 3)
    path.write_bytes(header.ljust(64, b"\0") + b"".join(parts) + table)
    return path


def test_code_of_the_kept_architecture_stays_and_the_rest_is_emptied(tmp_path: Path) -> None:
    library = _library(
        tmp_path / "lib.so",
        _fat_binary(
            _entry(MACHINE_CODE, 80, b"ampere"), _entry(MACHINE_CODE, 90, b"hopper"), _entry(PTX, 90, b"portable")
        ),
    )
    before = library.read_bytes()

    assert keep(library, {90}) == (len(b"hopper"), len(b"ampere") + len(b"portable"))

    after = library.read_bytes()
    assert len(after) == len(before)
    assert b"hopper" in after
    assert b"ampere" not in after
    assert b"portable" not in after
    assert b"not code" in after, "another section"
    assert struct.pack("<I", 999) in after, "a driver must not compile what was emptied"


def test_ptx_stays_where_there_is_no_machine_code_for_the_architecture(tmp_path: Path) -> None:
    library = _library(tmp_path / "lib.so", _fat_binary(_entry(MACHINE_CODE, 80, b"ampere"), _entry(PTX, 80, b"ptx")))

    assert keep(library, {90}) == (len(b"ptx"), len(b"ampere"))


@pytest.mark.parametrize("content", [b"#!/bin/sh\nexit 0\n" * 10, b"\x7fELF\x01\x01".ljust(200, b"\0")])
def test_what_is_no_such_library_is_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(content)

    assert keep(file, {90}) == (0, 0)
    assert file.read_bytes() == content
