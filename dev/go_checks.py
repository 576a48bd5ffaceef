"""Checking the Go programs that are deployed: format, `go vet` and tests, with the Go that builds the cluster."""

from __future__ import annotations

from pathlib import Path

from dev.report import DevError
from dev.settings import REPOSITORY, Settings
from dev.shell import run, run_logged
from dev.supply.toolchain import Go, find

_DEADLINE = 600.0


def check_format(settings: Settings) -> None:
    """Refuse files that gofmt would write differently."""
    gofmt = _gofmt(find(settings))
    for folder in modules():
        if unformatted := run([gofmt, "-l", "."], cwd=folder).stdout.split():
            raise DevError(
                f"{folder.relative_to(REPOSITORY)}: not formatted: {', '.join(unformatted)}", fix="`make format`"
            )


def write_format(settings: Settings) -> None:
    """Write all files as gofmt has them."""
    gofmt = _gofmt(find(settings))
    for folder in modules():
        run([gofmt, "-w", "."], cwd=folder)


def test(settings: Settings) -> None:
    """Vet and test every module. Nothing is downloaded: they have no dependencies."""
    go = find(settings)
    # The flags of dev/supply/binaries.py: the standard library is compiled with them already.
    flags = "-buildvcs=false -trimpath -gcflags=all=-dwarf=false"
    env = go.env | {"CGO_ENABLED": "0", "GOFLAGS": flags, "GOPROXY": "off"}
    for folder in modules():
        log = settings.cache / "logs" / f"go-test-{folder.name}.log"
        log.unlink(missing_ok=True)
        for arguments in (["vet", "./..."], ["test", "-timeout=120s", "./..."]):
            what = f"go {' '.join(arguments)} in {folder.relative_to(REPOSITORY)}"
            run_logged([go.program, *arguments], log=log, deadline=_DEADLINE, what=what, env=env, cwd=folder)
        print(log.read_text(), end="")


def modules() -> list[Path]:
    """The parts that are a Go module."""
    return sorted(path.parent for path in REPOSITORY.glob("*/go.mod"))


def _gofmt(go: Go) -> Path:
    root = run([go.program, "env", "GOROOT"], env=go.env, cwd=Path("/")).stdout.strip()
    return Path(root) / "bin" / "gofmt"
