"""Background daemons with pid files, and the proof that a pid still belongs to the process we started.

A pid alone proves nothing: after a crash or a reboot the number may belong to somebody else. So the file
also holds the process's start time and program, as the kernel tells them, and both must still agree.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dev.files import write
from dev.report import DevError
from dev.settings import Settings
from dev.shell import environment


@dataclass(frozen=True, slots=True)
class Daemon:
    """A long-running program of ours."""

    name: str
    argv: Sequence[str | Path]
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    def log(self, settings: Settings) -> Path:
        """Where its output goes."""
        return settings.logs / f"{self.name}.log"


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells one process from any other that had or will have its pid."""

    pid: int
    started: int
    program: str


def identify(pid: int) -> Identity | None:
    """The identity of a live process; None if it is gone, a zombie, or a kernel thread."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return None
    return None if fields[0] in "ZX" else Identity(pid, int(fields[19]), program)


def recorded(settings: Settings, name: str) -> Identity | None:
    """The process of that name that we started, if it is still that process."""
    try:
        said = json.loads((settings.pids / f"{name}.json").read_text())
        identity = Identity(said["pid"], said["started"], said["program"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return identity if identify(identity.pid) == identity else None


def start(settings: Settings, daemon: Daemon) -> bool:
    """Start the daemon unless it runs; says whether it was started."""
    if recorded(settings, daemon.name) is not None:
        return False
    log = daemon.log(settings)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            process = subprocess.Popen(
                [str(part) for part in daemon.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(daemon.env),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise DevError(f"cannot start {daemon.name}: {error}") from None
    identity = identify(process.pid)
    if identity is None:
        raise DevError(f"{daemon.name} ended at once", log=log)
    record = {"pid": identity.pid, "started": identity.started, "program": identity.program}
    write(settings.pids / f"{daemon.name}.json", json.dumps(record))
    return True


def dead(settings: Settings, names: Sequence[str]) -> list[str]:
    """Those of the daemons that do not run."""
    return [name for name in names if recorded(settings, name) is None]


def require(settings: Settings, names: Sequence[str]) -> None:
    """Fail with the log of the first daemon that has died: better than waiting for what it will never do."""
    for name in dead(settings, names):
        raise DevError(f"{name} has died", fix="see its log", log=settings.logs / f"{name}.log")


def stop(settings: Settings, name: str, *, grace: float = 10.0) -> None:
    """End one of our daemons: politely, then by force."""
    identity = recorded(settings, name)
    if identity is not None:
        end(identity, grace=grace)
    (settings.pids / f"{name}.json").unlink(missing_ok=True)


def end(identity: Identity, *, grace: float = 10.0) -> None:
    """Terminate exactly this process."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
        if identify(identity.pid) != identity:
            return
        try:
            os.kill(identity.pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if identify(identity.pid) != identity:
                return
            time.sleep(0.05)
    raise DevError(f"process {identity.pid} ({identity.program}) does not die", fix="look at its state in `ps`")


def mentioning(text: str, programs: Sequence[str]) -> list[Identity]:
    """Live processes of one of these programs whose command line holds the text (a path that is ours alone)."""
    found: list[Identity] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        identity = identify(int(entry.name))
        if identity is None or Path(identity.program).name not in programs:
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(identity)
    return found
