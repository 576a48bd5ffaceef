"""A bundle's parts: cut here, received and put together on a machine that may see them in any order, or damaged."""

import json
import random
from pathlib import Path

import pytest

from dev.gpu.bundle import parts

SIZE = 1000


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    chance = random.Random(1)
    made: dict[str, Path] = {}
    for name, size in (("one", 2500), ("none", 0), ("two", 499), ("three", 1)):
        made[name] = tmp_path / name
        made[name].write_bytes(chance.randbytes(size))
    return made


def test_parts_of_any_order_become_the_files_again(files: dict[str, Path], tmp_path: Path) -> None:
    made = parts.cut(files, tmp_path / "parts", SIZE)
    assert [(part / "data").stat().st_size for part in made] == [SIZE, SIZE, SIZE]

    left = [parts.receive(part, tmp_path / "there") for part in (made[2], made[0], made[2], made[1])]

    assert left == [[0, 1], [1], [1], []]
    joined = parts.join(tmp_path / "there", tmp_path / "joined")
    assert {path.name: path.read_bytes() for path in joined} == {
        name: path.read_bytes() for name, path in files.items()
    }


def test_a_damaged_part_is_refused_and_still_missing(files: dict[str, Path], tmp_path: Path) -> None:
    first, second, third = parts.cut(files, tmp_path / "parts", SIZE)
    parts.receive(first, tmp_path / "there")
    (second / "data").write_bytes(b"x" + (second / "data").read_bytes()[1:])

    with pytest.raises(parts.DamagedError, match="send it again"):
        parts.receive(second, tmp_path / "there")

    assert parts.receive(third, tmp_path / "there") == [1]


def test_a_newer_bundle_replaces_the_parts_of_an_older_one(files: dict[str, Path], tmp_path: Path) -> None:
    for part in parts.cut(files, tmp_path / "parts", SIZE)[:2]:
        parts.receive(part, tmp_path / "there")
    files["one"].write_bytes(b"other")
    (only,) = parts.cut(files, tmp_path / "newer", SIZE)

    assert parts.receive(only, tmp_path / "there") == []
    assert sum(1 for _ in (tmp_path / "there").iterdir()) == 2, "the part and the index"


def test_a_file_that_is_not_what_was_sent_is_told(files: dict[str, Path], tmp_path: Path) -> None:
    for part in parts.cut(files, tmp_path / "parts", SIZE):
        parts.receive(part, tmp_path / "there")
    index = tmp_path / "there" / "index.json"
    said = json.loads(index.read_text())
    said["files"][0]["sha256"] = "0" * 64
    index.write_text(json.dumps(said))

    with pytest.raises(parts.DamagedError, match="one: sha256"):
        parts.join(tmp_path / "there", tmp_path / "joined")
