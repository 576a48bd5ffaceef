"""A bundle on the machine that it was carried to: its root is unpacked with the programs that came in it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dev.gpu.bundle import machine, parts

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("zstd", "xz", "ldconfig"))),
    reason="a root is entered, with zstd, xz and ldconfig of this machine",
)


@pytest.fixture
def bundle(tmp_path: Path) -> list[Path]:
    """Parts of a root with zstd and ldconfig, a cache of one program, and images."""
    root = tmp_path / "root"
    for program in ("zstd", "ldconfig"):
        where = Path(shutil.which(program) or "")
        needed = subprocess.run(["ldd", where], capture_output=True, text=True, check=False).stdout
        for file in (where.resolve(), *map(Path, re.findall(r"(?:=> |^\s+)(/\S+)", needed, re.MULTILINE))):
            target = root / file.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    (root / "etc").mkdir()
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    (root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True, exist_ok=True)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "program").write_text("p")
    files = {name: tmp_path / name for name in ("root.tar.xz", "cache.tar.zst", "images.tar")}
    _tar(files["root.tar.xz"], root, "xz -0")
    _tar(files["cache.tar.zst"], cache, "zstd --long=27")
    files["images.tar"].write_bytes(b"images")
    return parts.cut(files, tmp_path / "parts", 2**20)


def _tar(archive: Path, folder: Path, program: str) -> None:
    command = ["tar", "--create", f"--use-compress-program={program}", f"--file={archive}", f"--directory={folder}"]
    subprocess.run([*command, "."], check=True)


def test_a_bundle_is_unpacked_once_with_the_machines_driver(
    bundle: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "driver"
    (driver / "lib64").mkdir(parents=True)
    (driver / "lib64" / "libcuda.so.1").write_bytes(b"c")
    monkeypatch.setattr(machine, "_DRIVER", driver)
    place = tmp_path / "place"
    assert machine.receive(bundle, place) == 0

    root = machine.unpack(place)
    assert (root / "root/.cache/gymtrain/program").read_text() == "p"
    assert (root / "images.tar").read_bytes() == b"images"
    assert (root / "usr/lib/x86_64-linux-gnu/libcuda.so.1").read_bytes() == b"c"
    (root / "mine").touch()
    assert machine.unpack(place) == root
    assert (root / "mine").exists(), "it was unpacked again"


def test_what_was_unpacked_to_a_half_is_unpacked_anew(
    bundle: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_DRIVER", tmp_path / "none")
    place = tmp_path / "place"
    (place / "root").mkdir(parents=True)
    (place / "root" / "half").touch()
    machine.receive(bundle, place)
    root = machine.unpack(place)
    assert not (root / "half").exists()
    assert (root / "images.tar").exists()


def test_a_bundle_that_lacks_parts_is_not_unpacked(bundle: list[Path], tmp_path: Path) -> None:
    place = tmp_path / "place"
    with pytest.raises(machine.MachineError, match="no part has arrived"):
        machine.unpack(place)
    assert machine.receive(bundle[1:], place) == 3
    with pytest.raises(machine.MachineError, match="parts 0 are missing"):
        machine.unpack(place)
