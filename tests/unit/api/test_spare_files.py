"""Files of old weights that new ones are written into."""

import os
from pathlib import Path

from gymtrain_api.spare_files import SpareFiles


def old_version(place: Path, **sizes: int) -> Path:
    folder = place / "old"
    folder.mkdir()
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)
    return folder


def gathered(place: Path, **sizes: int) -> SpareFiles:
    SpareFiles(place).gather(old_version(place, **sizes))
    return SpareFiles(place)


def test_a_file_of_the_same_size_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = old_version(tmp_path, a=3, b=5)
    expected = (folder / "a").stat().st_ino
    SpareFiles(tmp_path).gather(folder)
    assert SpareFiles(tmp_path).take(tmp_path / "new", 3)
    assert ((tmp_path / "new").stat().st_ino, (tmp_path / "new").stat().st_size) == (expected, 3)


def test_a_file_of_another_size_is_cut_or_made_longer(tmp_path: Path) -> None:
    spare = gathered(tmp_path, a=3, b=5)
    for size in (4, 9):
        assert spare.take(tmp_path / "new", size)
        assert (tmp_path / "new").stat().st_size == size
    assert not spare.take(tmp_path / "new", 4)


def test_where_sizes_are_fixed_a_file_of_another_size_is_given_back(tmp_path: Path) -> None:
    gathered(tmp_path, a=3, b=5)
    spare = SpareFiles(tmp_path, fixed=True)
    with next((tmp_path / "gymtrain-spare").glob("5-*")).open("rb") as larger:
        assert not spare.take(tmp_path / "new", 4)
        assert (os.fstat(larger.fileno()).st_size, os.fstat(larger.fileno()).st_nlink) == (5, 0)
    assert not (tmp_path / "new").exists()
    assert spare.take(tmp_path / "new", 3)


def test_a_file_that_another_folder_has_too_is_left_alone(tmp_path: Path) -> None:
    folder = old_version(tmp_path, a=3)
    os.link(folder / "a", tmp_path / "carried")
    SpareFiles(tmp_path).gather(folder)
    assert not SpareFiles(tmp_path).take(tmp_path / "new", 3)
    assert (tmp_path / "carried").read_bytes() == b"xxx"


def test_what_was_not_whole_and_what_leads_elsewhere_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    folder = old_version(tmp_path, lock=0, **{".a": 3})
    (folder / "b").symlink_to(tmp_path / "kept")
    SpareFiles(tmp_path).gather(folder)
    assert SpareFiles(tmp_path).bytes == 0


def test_two_that_want_the_same_file_do_not_both_get_it(tmp_path: Path) -> None:
    gathered(tmp_path, a=3)
    first, second = SpareFiles(tmp_path), SpareFiles(tmp_path)
    assert first.bytes == second.bytes == 3  # both have looked
    assert first.take(tmp_path / "new", 3)
    assert not second.take(tmp_path / "other", 3)


def test_what_nobody_took_goes(tmp_path: Path) -> None:
    spare = gathered(tmp_path, a=3)
    spare.clear()
    assert SpareFiles(tmp_path).bytes == 0
    assert not spare.take(tmp_path / "new", 3)
