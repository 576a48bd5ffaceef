"""Empties, in CUDA libraries, the machine code of GPUs that an image isn't for.

    python keep_architectures.py FOLDER 90 [ARCHITECTURE ...]

A library built with CUDA carries its kernels once for each architecture (90 is an H100's or H200's), and as PTX that a
driver compiles for later ones. What isn't kept becomes zeros in place, so nothing else of the file moves: they compress
to nothing in a layer. PTX goes too, where the same kernels are there as kept machine code.

The layout of a fat binary, of which NVIDIA publishes none: in the ELF sections .nv_fatbin and __nv_relfatbin, a header
(magic 0xba55ed50, its size and the content's), then entries of kind (1 PTX, 2 machine code), header's size, payload's
size and architecture. Read from the libraries of CUDA 13.
"""

import mmap
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC = struct.pack("<I", 0xBA55ED50)
_PTX, _MACHINE_CODE = 1, 2
_UNKNOWN_ARCHITECTURE = 999
"""Written where PTX was emptied: a driver must never pick it to compile."""
_ARCHITECTURE_AT = 28
_ELF = b"\x7fELF\x02\x01"  # 64 bits, little-endian


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel module for one architecture. Offsets and sizes in bytes."""

    kind: int
    at: int
    payload: int
    size: int
    architecture: int


def _sections(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Where a fat binary may be: (offset, size)."""
    if data[:6] != _ELF:
        return
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", data, table + index * entry_size) for index in range(count)]
    if not sections:
        return
    name_table = sections[names][4]
    for name, _, _, _, offset, size in sections:
        begin = name_table + name
        if data[begin : data.find(b"\0", begin)] in (b".nv_fatbin", b"__nv_relfatbin"):
            yield offset, size


def fat_binaries(data: mmap.mmap) -> Iterator[list[Entry]]:
    """The entries of each fat binary."""
    for offset, size in _sections(data):
        at, end = offset, offset + size
        while (at := data.find(_MAGIC, at, end)) >= 0:
            _, header, content = struct.unpack_from("<HHQ", data, at + 4)
            entries: list[Entry] = []
            entry = at + header
            while entry < at + header + content:
                kind, _, header_size, payload = struct.unpack_from("<HHIQ", data, entry)
                if header_size == 0:
                    break
                (architecture,) = struct.unpack_from("<I", data, entry + _ARCHITECTURE_AT)
                entries.append(Entry(kind, entry, entry + header_size, payload, architecture))
                entry += header_size + payload
            yield entries
            at += header + content


def keep(library: Path, architectures: set[int]) -> tuple[int, int]:
    """Empties the rest; returns the bytes of code that were kept and emptied."""
    kept = emptied = 0
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for entries in fat_binaries(data):
            have = any(entry.kind == _MACHINE_CODE and entry.architecture in architectures for entry in entries)
            for entry in entries:
                wanted = entry.architecture in architectures if entry.kind == _MACHINE_CODE else not have
                if wanted:
                    kept += entry.size
                    continue
                emptied += entry.size
                data[entry.payload : entry.payload + entry.size] = bytes(entry.size)
                if entry.kind == _PTX:
                    struct.pack_into("<I", data, entry.at + _ARCHITECTURE_AT, _UNKNOWN_ARCHITECTURE)
    return kept, emptied


def main(folder: Path, architectures: set[int]) -> None:
    """Every library below the folder; a line for each that had any."""
    for library in sorted(folder.rglob("*.so*")):
        if library.is_file() and not library.is_symlink() and library.stat().st_size > len(_ELF):
            kept, emptied = keep(library, architectures)
            if emptied:
                print(f"{library.relative_to(folder)}: {kept / 1e6:.1f} MB kept, {emptied / 1e6:.1f} MB emptied")


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all(word.isdigit() for word in sys.argv[2:]):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), {int(word) for word in sys.argv[2:]})
