"""The cluster's programs, built from pinned Go modules and cached by what went into them.

The cache folder of a set is named by the hash of its go.mod, go.sum, sources and flags, is filled under another name
and renamed when complete, and holds checksums that are verified before a cluster starts from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from dev.report import DevError, say, step
from dev.settings import Settings
from dev.shell import run, run_logged
from dev.supply.modules import fetched_ahead
from dev.supply.sets import SETS, BinarySet
from dev.supply.toolchain import Go, find

_MANIFEST = "checksums.json"


def ensure(
    settings: Settings, names: Sequence[str] = (), when_ready: Mapping[str, Callable[[], None]] | None = None
) -> dict[str, Path]:
    """Build what the cache lacks, of the sets that a cluster needs or the named ones; returns each file's path.

    `when_ready`: by set, what to do as soon as its programs are there, before the next set is built.
    """
    sets = {binaries.name: binaries for binaries in SETS}
    if unknown := sorted(set(names) - sets.keys()):
        raise DevError(f"no such set of programs: {', '.join(unknown)}", fix=f"one of: {', '.join(sets)}")
    wanted = [
        (binaries, _folder(settings, binaries))
        for binaries in [sets[name] for name in names] or [one for one in SETS if not one.lazy]
    ]
    missing = [binaries for binaries, folder in wanted if not _is_whole(folder)]
    with ExitStack() as ahead:
        if missing:
            go = find(settings)
            later: dict[Path, list[str]] = {}
            for binaries in missing[1:]:
                later.setdefault(binaries.folder, []).extend(binaries.packages.values())
            ahead.enter_context(fetched_ahead(go, later, settings.cache / "logs" / "modules.log"))
        for binaries, folder in wanted:
            if binaries in missing:
                if folder.exists():
                    say(f"{folder} is damaged: building it again")
                _build(settings, go, binaries, folder)
            _link(settings, {name: folder / name for name in binaries.packages if not binaries.apart})
            if when_ready and binaries.name in when_ready:
                when_ready[binaries.name]()
    files = ((folder, name) for binaries, folder in wanted for name in (*binaries.packages, *binaries.documents))
    return {name: folder / name for folder, name in files}


def lacking(settings: Settings, names: Sequence[str]) -> list[str]:
    """Those of the named sets that would have to be built."""
    return [one.name for one in SETS if one.name in names and not _is_whole(_folder(settings, one))]


def existing(settings: Settings, program: str) -> Path:
    """The stable path of a program that was built before."""
    return settings.programs / program


def apart(settings: Settings, program: str) -> Path:
    """The path of a program that was built before and is of a set that stands apart."""
    (binaries,) = (one for one in SETS if one.apart and program in one.packages)
    return _folder(settings, binaries) / program


def _folder(settings: Settings, binaries: BinarySet) -> Path:
    return settings.cache / "bin-sets" / f"{binaries.name}-{binaries.key()}"


def _is_whole(folder: Path) -> bool:
    try:
        expected: dict[str, str] = json.loads((folder / _MANIFEST).read_text())
        return all(_checksum(folder / name) == checksum for name, checksum in expected.items())
    except (OSError, ValueError):
        return False


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _build(settings: Settings, go: Go, binaries: BinarySet, folder: Path) -> None:
    temporary = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    if binaries.packages:
        _compile(go, binaries, temporary, settings.cache / "logs" / f"build-{binaries.name}.log")
    for name, patterns in binaries.documents.items():
        (temporary / name).write_text("\n---\n".join(_texts(go, binaries, patterns)))
    names = [*binaries.packages, *binaries.documents]
    (temporary / _MANIFEST).write_text(json.dumps({name: _checksum(temporary / name) for name in names}))
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
    for stale in folder.parent.glob(f"{binaries.name}-*"):
        if stale != folder:
            shutil.rmtree(stale, ignore_errors=True)


def _compile(go: Go, binaries: BinarySet, folder: Path, log: Path) -> None:
    """Build the programs into `folder`, under their own names."""
    # The linker drops debug information anyway (-s -w); not making it, and collecting garbage less often, takes a fifth
    # off the compiler's time.
    command: list[str | Path] = ["nice", go.program, "build", "-p", "2", "-trimpath", "-buildvcs=false"]
    command += ["-gcflags=all=-dwarf=false", "-tags", binaries.tags]
    # All in one: while one program is linked, which takes one processor, the next is compiled.
    packages = list(binaries.packages.values())
    built = folder / "built"
    with step(f"building {', '.join(binaries.packages)}"):
        run_logged(
            [*command, "-ldflags", binaries.ldflags, "-o", f"{built}/", *packages],
            log=log,
            deadline=3600,
            what=f"building {', '.join(binaries.packages)}",
            fix="see the log; the Go module proxy must be reachable (`go env GOPROXY`)",
            env=go.env | {"CGO_ENABLED": "1" if binaries.c_code else "0", "GOGC": "400"},
            cwd=binaries.folder,
        )
    # Go calls a program as its package, which is not always its own name.
    targets = run([go.program, "list", "-f", "{{.Target}}", *packages], env=go.env, cwd=binaries.folder).stdout.split()
    for name, target in zip(binaries.packages, targets, strict=True):
        (built / Path(target).name).rename(folder / name)
    built.rmdir()


def _texts(go: Go, binaries: BinarySet, patterns: Sequence[str]) -> Iterator[str]:
    """Files of modules. Those of programs the build has just fetched."""
    for place in patterns:
        module, _, pattern = place.partition("//")
        if not binaries.packages:
            run([go.program, "mod", "download", module], env=go.env, cwd=binaries.folder)
        found = run([go.program, "list", "-m", "-f", "{{.Dir}}", module], env=go.env, cwd=binaries.folder)
        files = sorted(Path(found.stdout.strip()).glob(pattern))
        if not files:
            raise DevError(f"module {module} holds no {pattern}", fix=f"see {binaries.folder / 'go.mod'}")
        yield from (file.read_text() for file in files)


def _link(settings: Settings, programs: Mapping[str, Path]) -> None:
    """One folder for the PATH: kubectl and helm are useful to people and tests."""
    folder = settings.programs
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in programs.items():
        temporary = folder / f".{name}.tmp-{os.getpid()}"
        temporary.symlink_to(path)
        temporary.replace(folder / name)
