"""Files as parts of a size that travels, each whole by itself: what arrived is checked, and never asked for again.

A part is a folder with `data`, a piece of the files one after the other, and `index.json`, which is the same in all:

    {"parts": [SHA256, ...], "files": [{"name": ..., "size": BYTES, "sha256": ...}, ...]}

Runs on the GPU machine too, so it needs nothing but Python 3.12.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

PART_BYTES = 50 * 2**20
"""Below the 64 MiB of a transfer, with room for the repository that travels along."""
_BLOCK = 2**20
_DATA, _INDEX = "data", "index.json"


class DamagedError(Exception):
    """A part, or a file that was put together, isn't what the index says."""


def cut(files: Mapping[str, Path], into: Path, size: int = PART_BYTES) -> list[Path]:
    """Write the parts of the files, in the order given; returns their folders."""
    shutil.rmtree(into, ignore_errors=True)
    parts: list[Path] = []
    sums: list[str] = []
    described: list[dict[str, object]] = []
    output, room, digest = None, 0, hashlib.sha256()
    for name, path in files.items():
        whole = hashlib.sha256()
        for block in _blocks(path):
            whole.update(block)
            while block:
                if not room:
                    if output:
                        output.close()
                        sums.append(digest.hexdigest())
                    parts.append(into / f"{len(parts):03}")
                    parts[-1].mkdir(parents=True)
                    output, room, digest = (parts[-1] / _DATA).open("wb"), size, hashlib.sha256()
                piece, block = block[:room], block[room:]
                assert output is not None
                output.write(piece)
                digest.update(piece)
                room -= len(piece)
        described.append({"name": name, "size": path.stat().st_size, "sha256": whole.hexdigest()})
    if output:
        output.close()
        sums.append(digest.hexdigest())
    for part in parts:
        (part / _INDEX).write_text(json.dumps({"parts": sums, "files": described}))
    return parts


def receive(part: Path, place: Path) -> list[int]:
    """Keep a part that arrived; returns the numbers of those that are missing.

    A part of another bundle than those that are there replaces them.

    Raises:
        DamagedError: its content isn't what its index says.
    """
    index = (part / _INDEX).read_text()
    sums: list[str] = json.loads(index)["parts"]
    found = _sum(part / _DATA)
    if found not in sums:
        raise DamagedError(f"{part}: sha256 {found} is no part's of its index; send it again")
    if (place / _INDEX).exists() and (place / _INDEX).read_text() != index:
        shutil.rmtree(place)
    place.mkdir(parents=True, exist_ok=True)
    (place / _INDEX).write_text(index)
    temporary = place / f"{found}.tmp"
    shutil.copyfile(part / _DATA, temporary)
    temporary.rename(place / found)
    return missing(place)


def missing(place: Path) -> list[int]:
    """Numbers of the parts that haven't arrived."""
    sums: list[str] = json.loads((place / _INDEX).read_text())["parts"]
    return [number for number, sum_ in enumerate(sums) if not (place / sum_).exists()]


def join(place: Path, into: Path) -> list[Path]:
    """Put the files together from parts that are all there; returns them, in order.

    Raises:
        DamagedError: a file isn't what the index says.
    """
    index = json.loads((place / _INDEX).read_text())
    stream = _stream([place / sum_ for sum_ in index["parts"]])
    rest = b""
    written: list[Path] = []
    for file in index["files"]:
        path, left, digest = into / file["name"], int(file["size"]), hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as output:
            while left:
                rest = rest or next(stream)
                piece, rest = rest[:left], rest[left:]
                output.write(piece)
                digest.update(piece)
                left -= len(piece)
        if digest.hexdigest() != file["sha256"]:
            raise DamagedError(f"{path}: sha256 {digest.hexdigest()}, not {file['sha256']}")
        written.append(path)
    return written


def _stream(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        yield from _blocks(path)


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
