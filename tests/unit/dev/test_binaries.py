import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from dev.report import DevError
from dev.settings import Settings
from dev.supply import binaries, sets
from dev.supply.sets import CONTAINER_RUNTIME, BinarySet
from dev.supply.toolchain import Go


def _programs(argv: Sequence[str | Path], cwd: Path) -> list[str]:
    """What Go calls the programs of the packages at the end of a command: by their last elements."""
    packages = [str(word) for word in argv[list(argv).index("-o" if "-o" in argv else "-f") + 2 :]]
    return [cwd.name if package == "." else package.removesuffix("/v3").split("/")[-1] for package in packages]


def _targets(argv: Sequence[str | Path], *, cwd: Path, **_: object) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], 0, "".join(f"/go/bin/{name}\n" for name in _programs(argv, cwd)), "")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Go stood in for by a note of what it was asked to build."""
    asked: list[str] = []

    def build(argv: Sequence[str | Path], *, cwd: Path, **_: object) -> None:
        folder = Path(argv[list(argv).index("-o") + 1])
        folder.mkdir()
        for name in _programs(argv, cwd):
            asked.append(name)
            (folder / name).write_text(f"program {name}")

    monkeypatch.setattr(binaries, "run_logged", build)
    monkeypatch.setattr(binaries, "run", _targets)
    monkeypatch.setattr(binaries, "find", lambda _: Go(Path("/bin/go")))
    return asked


def test_what_is_cached_is_not_built_again(settings: Settings, builds: list[str]) -> None:
    first = binaries.ensure(settings, ["buildkit"])
    assert builds == ["buildkitd", "buildctl"]

    assert binaries.ensure(settings, ["buildkit"]) == first
    assert builds == ["buildkitd", "buildctl"]
    assert os.readlink(settings.programs / "buildctl") == str(first["buildctl"])


def test_a_damaged_cache_is_built_anew(settings: Settings, builds: list[str]) -> None:
    program = binaries.ensure(settings, ["pause"])["pause"]
    program.write_text("program pauSe")

    binaries.ensure(settings, ["pause"])

    assert builds == ["pause", "pause"]
    assert program.read_text() == "program pause"


def test_a_build_that_was_cut_off_leaves_nothing_that_is_used(
    settings: Settings, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(argv: Sequence[str | Path], **_: object) -> None:
        folder = Path(argv[list(argv).index("-o") + 1])
        folder.mkdir()
        (folder / "pause").write_text("half")
        raise DevError("cut off")

    with monkeypatch.context() as broken:
        broken.setattr(binaries, "run_logged", fail)
        with pytest.raises(DevError, match="cut off"):
            binaries.ensure(settings, ["pause"])

    assert binaries.ensure(settings, ["pause"])["pause"].read_text() == "program pause"
    assert len(list((settings.cache / "bin-sets").iterdir())) == 1


def test_the_key_follows_versions_sums_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "GO_FOLDER", tmp_path)
    (tmp_path / "set").mkdir()
    keys: set[str] = set()
    for module, sums, flags in [("a", "x", "-s"), ("b", "x", "-s"), ("a", "y", "-s"), ("a", "x", "-w")]:
        (tmp_path / "set/go.mod").write_text(module)
        (tmp_path / "set/go.sum").write_text(sums)
        keys.add(BinarySet("set", {"p": "."}, ldflags=flags).key())

    assert len(keys) == 4


def test_a_program_has_its_own_name_where_go_names_it_after_a_folder(settings: Settings, builds: list[str]) -> None:
    files = binaries.ensure(settings, ["kubernetes"])
    assert "server" in builds
    assert files["etcd"].read_text() == "program server"
    assert files["kubectl"].read_text() == "program kubectl"


def test_programs_named_like_debians_stay_off_the_path(settings: Settings, builds: list[str]) -> None:
    files = binaries.ensure(settings, CONTAINER_RUNTIME)
    assert builds == ["containerd", "containerd-shim-runc-v2", "ctr", "runc"]
    assert not list(settings.programs.iterdir())
    assert {name: binaries.apart(settings, name) for name in files} == files


def test_an_unknown_set_is_refused(settings: Settings) -> None:
    with pytest.raises(DevError, match="no such set of programs: nope"):
        binaries.ensure(settings, ["nope"])


def test_what_only_benchmarks_need_is_built_when_asked_for_by_name(
    settings: Settings, builds: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lazy = BinarySet("extra", {"extra": "."}, lazy=True)
    monkeypatch.setattr(sets, "GO_FOLDER", tmp_path)
    monkeypatch.setattr(binaries, "SETS", (BinarySet("usual", {"usual": "."}), lazy))

    binaries.ensure(settings)
    assert builds == ["usual"]

    binaries.ensure(settings, ["extra"])
    assert builds == ["usual", "extra"]


def test_documents_of_a_module_are_kept_beside_its_programs(
    settings: Settings, builds: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"kind: {name}")

    def run(argv: Sequence[str | Path], *, cwd: Path, **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, f"{tmp_path}\n", "") if "-m" in argv else _targets(argv, cwd=cwd)

    monkeypatch.setattr(binaries, "run", run)
    one = BinarySet("one", {"one": "."}, documents={"all.yaml": ["example.org/module//*.yaml"]})
    monkeypatch.setattr(sets, "GO_FOLDER", tmp_path)
    monkeypatch.setattr(binaries, "SETS", (one,))

    files = binaries.ensure(settings)

    assert files["all.yaml"].read_text() == "kind: a\n---\nkind: b"
    assert not (settings.programs / "all.yaml").exists()


def test_a_set_can_be_documents_alone(
    settings: Settings, builds: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def run(argv: Sequence[str | Path], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(" ".join(map(str, argv[1:])))
        return subprocess.CompletedProcess([], 0, f"{tmp_path}\n", "")

    (tmp_path / "a.yaml").write_text("kind: a")
    monkeypatch.setattr(binaries, "run", run)
    monkeypatch.setattr(sets, "GO_FOLDER", tmp_path)
    monkeypatch.setattr(binaries, "SETS", (BinarySet("one", {}, documents={"all.yaml": ["example.org/m//*.yaml"]}),))

    assert binaries.ensure(settings)["all.yaml"].read_text() == "kind: a"
    assert asked[0] == "mod download example.org/m"
    assert builds == []


def test_a_set_is_ready_before_the_next_one_is_built(settings: Settings, builds: list[str]) -> None:
    def note() -> None:
        assert (settings.programs / "pause").exists()
        builds.append("ready")

    binaries.ensure(settings, ["pause", "buildkit"], {"pause": note})
    binaries.ensure(settings, ["pause"], {"pause": note})
    assert builds == ["pause", "ready", "buildkitd", "buildctl", "ready"]
