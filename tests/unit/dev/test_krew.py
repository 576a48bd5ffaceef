"""The plugin for krew: what its archive holds runs where krew puts it, and the manifest names it."""

import hashlib
import os
import platform
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from dev import krew
from dev.krew import BIN, PLATFORMS, archive_name, main, manifest, packed

_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
BASE = ["--base-url", "https://downloads.example.com/v0", "--homepage", "https://example.com"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the archive for this machine."""
    place = tmp_path_factory.mktemp("krew")
    here = f"linux-{_ARCH[platform.machine()]}"
    assert main([*BASE, "--platform", here, "--out", str(place)]) == 0
    return place


@pytest.fixture(scope="module")
def installed(out: Path) -> Path:
    """As krew does: unpacked into a store, with a link to it in a folder of the PATH."""
    (archive,) = out.glob("*.tar.gz")
    store, bin_folder = out / "store" / "gymtrain" / "v0", out / "bin"
    with tarfile.open(archive) as file:
        file.extractall(store, filter="data")
    bin_folder.mkdir()
    (bin_folder / BIN).symlink_to(Path("..") / "store" / "gymtrain" / "v0" / BIN)
    return bin_folder / BIN


def run(command: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    python = Path(os.__file__).parents[2] / "bin"  # of the venv's base: no package of ours is there
    environment = {"PATH": path or f"{python}:/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": "/nonexistent"}
    return subprocess.run([command, *arguments], capture_output=True, text=True, timeout=60, env=environment)


def test_the_manifest_names_the_archive_by_its_digest(out: Path) -> None:
    told = yaml.safe_load((out / "gymtrain.yaml").read_text())
    (one,) = told["spec"]["platforms"]
    archive = out / one["uri"].removeprefix("https://downloads.example.com/v0/")
    assert one["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert one["selector"]["matchLabels"]["os"] == "linux"
    assert told["metadata"]["name"] == "gymtrain"


def test_it_runs_where_krew_puts_it(installed: Path) -> None:
    done = run(installed, "--help")
    assert done.returncode == 0, done.stderr
    assert "kubectl gymtrain" in done.stdout
    made = run(installed, "init", "resources_servers/x/configs/x.yaml")
    assert "kind: GymTrainingRun" in made.stdout, made.stderr


def test_without_its_python_it_says_what_is_missing(installed: Path, tmp_path: Path) -> None:
    for tool in ("sh", "dirname", "readlink"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    done = run(installed, "--help", path=str(tmp_path))
    assert done.returncode == 2
    assert "needs Python 3.13" in done.stderr


def test_the_archive_tells_nothing_of_this_machine(out: Path) -> None:
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        entries = file.getmembers()
        names = {entry.name for entry in entries}
    assert {BIN, "start.py", "LICENSE", "lib/gymtrain_cli/main.py"} <= names
    assert not any(name.startswith("lib/bin/") or name.endswith((".pyc", "direct_url.json")) for name in names)
    assert {(entry.mtime, entry.uid, entry.uname) for entry in entries} == {(0, 0, "")}


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    contents: list[bytes] = []
    for name in ("one", "two"):
        for file in ("b", "a") if name == "one" else ("a", "b"):
            (tmp_path / name / "lib").mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "lib" / file).write_text(file)
            os.utime(tmp_path / name / "lib" / file, (len(contents), 7))
        contents.append(packed(tmp_path / name))
    assert contents[0] == contents[1]


def test_each_platform_of_the_manifest_is_one_of_krews() -> None:
    told = manifest("https://a.example.com/b/", "https://example.com", dict.fromkeys(PLATFORMS, "0" * 64))
    assert [one["selector"]["matchLabels"] for one in told["spec"]["platforms"]] == [
        {"os": os_name, "arch": arch} for os_name in ("linux", "darwin") for arch in ("amd64", "arm64")
    ]
    assert told["spec"]["platforms"][0]["uri"] == f"https://a.example.com/b/{archive_name('linux-amd64')}"


def test_an_address_that_krew_does_not_take_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--base-url", "http://a.example.com", "--homepage", "https://example.com"])
    assert "--base-url: 'http://a.example.com' doesn't begin with https://" in capsys.readouterr().err


def test_a_package_that_a_platform_lacks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(krew, "PLATFORMS", {"linux-amd64": "no-such-platform"})
    assert main([*BASE, "--out", str(tmp_path), "--platform", "linux-amd64"]) == 1
    assert "error: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
